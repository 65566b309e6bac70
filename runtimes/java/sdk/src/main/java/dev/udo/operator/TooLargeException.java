package dev.udo.operator;

/** An answer is larger than Start allows. */
final class TooLargeException extends RuntimeException {
    TooLargeException(long events, long states, long size, long bound) {
        super("the answer to one frame has " + events + " events" + (states > 0 ? " and " + states + " states" : "") + " of " + size
            + " bytes; the bound is " + bound + ": return less per event, or send fewer events at a time");
    }
}
