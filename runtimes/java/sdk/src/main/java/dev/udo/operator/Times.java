package dev.udo.operator;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.arrow.vector.types.TimeUnit;

/** Times as µs since 1970, and Arrow's units. */
final class Times {
    private static final Instant FIRST = Instant.parse("0001-01-01T00:00:00Z");
    private static final Instant LAST = Instant.parse("9999-12-31T23:59:59.999999999Z");

    private Times() {}

    static Instant instant(long us) {
        return Instant.EPOCH.plus(us, ChronoUnit.MICROS);
    }

    /** The µs of a time that is stored; IllegalArgumentException beyond the years 1 to 9999. */
    static long us(Instant at) {
        return ticks(storable(at), TimeUnit.MICROSECOND);
    }

    /** The same time; IllegalArgumentException beyond the years 1 to 9999, the range of Python's times and of the protocol. */
    static Instant storable(Instant at) {
        if (at.isBefore(FIRST) || at.isAfter(LAST)) {
            throw new IllegalArgumentException("the time " + at + ": timers, expirations and states have those of the years 1 to 9999");
        }
        return at;
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
