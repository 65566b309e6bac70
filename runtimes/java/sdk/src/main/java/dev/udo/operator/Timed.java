package dev.udo.operator;

import java.time.Instant;

/** A keyed operator with timers. */
public interface Timed {
    /** Called at the end of the first epoch whose watermark has reached {@code at}. */
    void onTimer(Instant at, Key key) throws Exception;
}
