package dev.udo.samples;

import dev.udo.operator.AsArray;
import dev.udo.operator.Event;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Row;
import dev.udo.operator.Timed;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** A keyed join of two inputs: each trade with the quote that was in force when it was made. */
final class TradeQuotes implements KeyedOperator, Timed {
    @AsArray
    record Trade(Instant at, Double price) {}

    @AsArray
    record Quote(Instant at, Double bid, Double ask) {}

    /** The state of a symbol, as any language may have left it: waiting trades, and quotes that are still needed, by time. */
    record Waiting(List<Trade> trades, List<Quote> quotes) {}

    private static Waiting stateOf(Key key) {
        return key.state(Waiting.class).orElseGet(() -> new Waiting(new ArrayList<>(), new ArrayList<>()));
    }

    @Override
    public void process(Event event, Key key) {
        Waiting state = stateOf(key);
        Instant at = event.getInstant("at");
        if (event.getString("input").equals("quotes")) {
            state.quotes.add(new Quote(at, (Double) event.get("bid"), (Double) event.get("ask")));
            state.quotes.sort(Comparator.comparing(Quote::at)); // stable: equal times in order of arrival
        } else {
            state.trades.add(new Trade(at, (Double) event.get("price")));
            key.timer(at);
        }
        key.setState(state);
    }

    /** Called when event time has passed the trades of this moment in both inputs. */
    @Override
    public void onTimer(Instant at, Key key) {
        Waiting state = stateOf(key);
        int later = (int) state.quotes.stream().filter(quote -> !quote.at.isAfter(at)).count();
        Quote inForce = later == 0 ? new Quote(at, null, null) : state.quotes.get(later - 1);
        for (Trade trade : state.trades) {
            if (trade.at.equals(at)) {
                key.emit(Row.of("symbol", key.value(), "at", at, "price", trade.price, "bid", inForce.bid, "ask", inForce.ask));
            }
        }
        state.trades.removeIf(trade -> !trade.at.isAfter(at));
        key.setState(new Waiting(state.trades, state.quotes.subList(Math.max(later - 1, 0), state.quotes.size())));
    }
}
