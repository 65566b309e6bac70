package dev.udo.samples;

import dev.udo.operator.Context;
import dev.udo.operator.Event;
import dev.udo.operator.EventOperator;
import dev.udo.operator.Row;

/** Flags card payments of an unusual amount, event by event. */
final class Fraud implements EventOperator {
    private static final double LIMIT = 100.0;

    @Override
    public void process(Event event, Context ctx) {
        ctx.emit(Row.of("id", event.get("id"), "flagged", event.getDouble("value") > LIMIT));
    }
}
