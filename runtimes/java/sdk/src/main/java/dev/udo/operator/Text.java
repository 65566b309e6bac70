package dev.udo.operator;

import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** Text that leaves the process: whole where it is a value, bounded where people read it. */
final class Text {
    /** The engine keeps this many characters of a message and of a stack trace. */
    static final int MESSAGE_CHARS = 16_000, TRACE_CHARS = 32_000;
    /** A message of the protocol has at most 1 MiB, and a character at most three bytes. */
    static final int LOG_CHARS = 64_000;
    /** A value that an error shows. */
    static final int VALUE_CHARS = 1_000;
    /** Room for the note on what was cut. */
    private static final int NOTE_CHARS = 40;

    private Text() {}

    /** The text in UTF-8; IllegalArgumentException for half of a surrogate pair, in place of which String.getBytes writes "?". */
    static byte[] utf8(String text) {
        for (int at = 0; at < text.length(); at++) {
            if (!Character.isSurrogate(text.charAt(at))) {
                continue;
            }
            if (Character.charCount(text.codePointAt(at)) == 1) {
                String half = String.format(Locale.ROOT, "U+%04X at index %d", (int) text.charAt(at), at);
                throw new IllegalArgumentException("text with half a surrogate pair, " + half + ": do not cut text inside of a character");
            }
            at++;
        }
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** The text, or its beginning and its end with a note, at most this many characters; halves of surrogate pairs become "?". */
    static String cut(String text, int mostChars) {
        if (text.length() > mostChars) {
            int half = (mostChars - NOTE_CHARS) / 2;
            int first = half - (Character.isHighSurrogate(text.charAt(half - 1)) ? 1 : 0);
            int last = text.length() - half;
            last += Character.isLowSurrogate(text.charAt(last)) ? 1 : 0;
            text = text.substring(0, first) + String.format(Locale.ROOT, " … %,d characters cut … ", last - first) + text.substring(last);
        }
        return new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8);
    }
}
