package dev.udo.samples;

import dev.udo.operator.Event;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Row;

/** Answers each event with the number of events of its key so far. */
final class Count implements KeyedOperator {
    /** The state of a key, as any language may have left it: {"n": 3}. */
    record State(long n) {}

    @Override
    public void process(Event event, Key key) {
        long n = key.state(State.class).map(State::n).orElse(0L) + 1;
        key.emit(Row.of("id", event.get("id"), "k", event.get("k"), "n", n));
        key.setState(new State(n));
    }
}
