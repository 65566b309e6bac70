package dev.udo.samples;

import dev.udo.operator.Event;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Row;
import dev.udo.operator.Timed;
import java.time.Duration;
import java.time.Instant;

/** Answers with the number of events in a key's session, once the key has had none for half a minute of event time. */
final class Sessionise implements KeyedOperator, Timed {
    private static final Duration GAP = Duration.ofSeconds(30);

    record Session(long n, Instant last) {}

    @Override
    public void process(Event event, Key key) {
        Session session = key.state(Session.class).orElse(new Session(0, Instant.MIN));
        Instant at = event.getInstant("t");
        Instant last = session.last;
        if (at.isAfter(last)) {
            last = at;
            key.timer(at.plus(GAP));
        }
        key.setState(new Session(session.n + 1, last));
    }

    @Override
    public void onTimer(Instant at, Key key) {
        Session session = key.state(Session.class).orElse(null);
        if (session == null || at.isBefore(session.last.plus(GAP))) {
            return; // an event has come since
        }
        key.emit(Row.of("k", key.value(), "n", session.n, "ended", session.last));
        key.clear();
    }
}
