package dev.udo.operator;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.arrow.vector.types.TimeUnit;

/** Times as µs since 1970, and Arrow's units. */
final class Times {
    private Times() {}

    static Instant instant(long us) {
        return Instant.EPOCH.plus(us, ChronoUnit.MICROS);
    }

    static long us(Instant at) {
        return ticks(at, TimeUnit.MICROSECOND);
    }

    static ChronoUnit unit(TimeUnit unit) {
        return switch (unit) {
            case SECOND -> ChronoUnit.SECONDS;
            case MILLISECOND -> ChronoUnit.MILLIS;
            case MICROSECOND -> ChronoUnit.MICROS;
            case NANOSECOND -> ChronoUnit.NANOS;
        };
    }

    /** Units since 1970; not by ChronoUnit.between, which counts nanoseconds and so is limited to 292 years. */
    static long ticks(Instant at, TimeUnit unit) {
        long perSecond = unit(unit) == ChronoUnit.SECONDS ? 1 : 1_000_000_000L / unit(unit).getDuration().toNanos();
        return Math.addExact(Math.multiplyExact(at.getEpochSecond(), perSecond), at.getNano() / (1_000_000_000L / perSecond));
    }
}
