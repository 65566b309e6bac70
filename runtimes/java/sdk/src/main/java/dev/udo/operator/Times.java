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
        return ChronoUnit.MICROS.between(Instant.EPOCH, at);
    }

    static ChronoUnit unit(TimeUnit unit) {
        return switch (unit) {
            case SECOND -> ChronoUnit.SECONDS;
            case MILLISECOND -> ChronoUnit.MILLIS;
            case MICROSECOND -> ChronoUnit.MICROS;
            case NANOSECOND -> ChronoUnit.NANOS;
        };
    }
}
