package dev.udo.samples;

import dev.udo.operator.AsArray;
import dev.udo.operator.Event;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Row;
import dev.udo.operator.Timed;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/** A pattern over two inputs: news, and within a minute the first trade whose price has moved by 2 % since the last one before it. */
final class NewsMoves implements KeyedOperator, Timed {
    private static final Duration WITHIN = Duration.ofMinutes(1);
    private static final double MOVE = 0.02;

    /** A waiting event, with a headline or a price. */
    @AsArray
    record Waiting(Instant at, String input, Object said) {}

    /** A news item that no large move has followed yet, and the price before it. */
    @AsArray
    record News(Instant at, String headline, Double before) {}

    /** The state of a symbol, as any language may have left it; there is no price before the first trade. */
    record Seen(List<Waiting> waiting, List<News> news, Double price) {}

    private static Seen stateOf(Key key) {
        return key.state(Seen.class).orElseGet(() -> new Seen(new ArrayList<>(), new ArrayList<>(), null));
    }

    @Override
    public void process(Event event, Key key) {
        String headline = event.getString("headline");
        double price = event.getDouble("price");
        if ((headline == null || headline.isEmpty()) && price == 0) {
            return; // it carries no information
        }
        Seen state = stateOf(key);
        Instant at = event.getInstant("at");
        String input = event.getString("input");
        state.waiting.add(new Waiting(at, input, input.equals("news") ? headline : (Object) price));
        key.timer(at);
        key.setState(state);
    }

    /** Processes the events of this moment: news first, then the trades, in order of arrival. */
    @Override
    public void onTimer(Instant at, Key key) {
        Seen state = stateOf(key);
        List<News> news = state.news;
        news.removeIf(one -> Duration.between(one.at, at).compareTo(WITHIN) > 0);
        Double price = state.price;
        for (Waiting event : state.waiting) {
            if (event.at.equals(at) && event.said instanceof String headline) {
                news.add(new News(at, headline, price));
            }
        }
        for (Waiting event : state.waiting) {
            if (event.at.equals(at) && event.said instanceof Double now) {
                news.removeIf(one -> moved(one, now, at, key));
                price = now;
            }
        }
        state.waiting.removeIf(event -> !event.at.isAfter(at));
        key.setState(new Seen(state.waiting, news, price));
    }

    private static boolean moved(News one, double price, Instant at, Key key) {
        if (one.before == null || Math.abs(price - one.before) < MOVE * one.before) {
            return false;
        }
        key.emit(Row.of("symbol", key.value(), "at", at, "headline", one.headline, "change", (price - one.before) / one.before));
        return true;
    }
}
