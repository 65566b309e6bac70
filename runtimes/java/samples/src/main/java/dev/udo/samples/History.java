package dev.udo.samples;

import dev.udo.operator.Event;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Migrating;
import dev.udo.operator.Row;
import dev.udo.operator.Timed;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * The roles that {@code python -m benchmarks exactly_once} runs under faults: benchmarks/operators/history/history.py in Java, with its two
 * forms of state. Each behaviour changes the map that it gets, which is the key's whole state.
 */
final class History implements KeyedOperator, Timed, Migrating {
    private static final Duration GAP = Duration.ofSeconds(20);
    private static final Duration WITHIN = Duration.ofSeconds(30);
    private static final Duration FORGET = Duration.ofSeconds(60);
    /** The entry that holds the whole state in its other form. */
    private static final String INSIDE = "in";

    private final boolean wrapped;

    History(boolean wrapped) {
        this.wrapped = wrapped;
    }

    @Override
    public void process(Event event, Key key) {
        String name = (String) key.value();
        Map<String, Object> state = read(key);
        switch (name.charAt(0)) {
            case 'c' -> answer(event, key, "count", count(state));
            case 'l' -> last(event, key, state);
            case 's' -> session(event, key, state);
            case 'p' -> pattern(event, key, state);
            default -> throw new IllegalArgumentException("no behaviour for the key " + name);
        }
        write(key, state);
    }

    @Override
    public void onTimer(Instant instant, Key key) {
        String name = (String) key.value();
        Map<String, Object> state = read(key);
        LocalDateTime at = local(instant);
        if (state.containsKey("asked") && !list(state, "asked").contains(at)) {
            key.emit(row(key, -1, "a timer nobody asked for: " + at, 0));
        }
        if (name.charAt(0) == 's' && at.equals(state.get("until"))) {
            key.emit(row(key, state.get("first"), "session", state.get("n")));
            state.clear();
        } else if (name.charAt(0) == 'p' && at.equals(state.get("due"))) {
            key.emit(row(key, state.get("b"), "A B and no C", state.get("a")));
            forget(state);
        } else {
            return;
        }
        write(key, state);
    }

    @Override
    public Map<String, Object> migrate(Map<String, Object> old, int fromVersion) {
        return !wrapped ? inside(old) : old.isEmpty() ? old : Map.of(INSIDE, old);
    }

    private static long count(Map<String, Object> state) {
        return (Long) state.merge("n", 1L, (before, one) -> (Long) before + (Long) one);
    }

    private static void last(Event event, Key key, Map<String, Object> state) {
        Map<String, Object> kinds = map(state, "kinds");
        kinds.merge(event.getString("kind"), 1L, (before, one) -> (Long) before + (Long) one);
        List<Object> recent = list(state, "recent");
        // Formatted like Python's lists, texts and tuples.
        String counts = kinds.entrySet().stream().map(e -> "('" + e.getKey() + "', " + e.getValue() + ")").collect(Collectors.joining(", "));
        answer(event, key, "after " + recent + " [" + counts + "]", recent.isEmpty() ? -1L : recent.get(recent.size() - 1));
        recent.add(event.getLong("id"));
        state.put("kinds", kinds);
        state.put("recent", recent.subList(Math.max(0, recent.size() - 3), recent.size()));
        state.put("at", local(event.getInstant("t")));
    }

    private static void session(Event event, Key key, Map<String, Object> state) {
        state.putIfAbsent("first", event.getLong("id"));
        count(state);
        Instant at = event.getInstant("t").plus(GAP);
        LocalDateTime until = local(at);
        state.merge("until", until, (before, now) -> ((LocalDateTime) before).isAfter(until) ? before : now);
        ask(key, state, at);
    }

    private static void pattern(Event event, Key key, Map<String, Object> state) {
        Instant at = event.getInstant("t");
        switch (event.getString("kind")) {
            case "A" -> {
                state.put("a", event.getLong("id"));
                key.expire(at.plus(FORGET));
            }
            case "B" -> {
                if (state.containsKey("a") && state.putIfAbsent("b", event.getLong("id")) == null) {
                    state.put("due", local(at.plus(WITHIN)));
                    ask(key, state, at.plus(WITHIN));
                }
            }
            case "C" -> {
                if (state.containsKey("b")) {
                    answer(event, key, "C came in time", state.get("a"));
                    forget(state);
                }
            }
            default -> {}
        }
    }

    private static void forget(Map<String, Object> state) {
        List.of("a", "b", "due").forEach(state::remove);
    }

    private static void ask(Key key, Map<String, Object> state, Instant at) {
        List<Object> asked = list(state, "asked");
        asked.add(local(at));
        state.put("asked", asked);
        key.timer(at);
    }

    private static void answer(Event event, Key key, String what, Object n) {
        key.emit(row(key, event.getLong("id"), what, n));
    }

    private static Map<String, Object> row(Key key, Object id, String what, Object n) {
        return Row.of("k", key.value(), "id", id, "what", what, "n", n);
    }

    private Map<String, Object> read(Key key) {
        Map<String, Object> state = key.state().orElseGet(TreeMap::new);
        return wrapped ? inside(state) : state;
    }

    private void write(Key key, Map<String, Object> state) {
        if (state.isEmpty()) {
            key.clear();
        } else {
            key.setState(wrapped ? Map.of(INSIDE, state) : state);
        }
    }

    private static Map<String, Object> inside(Map<String, Object> state) {
        return map(state, INSIDE);
    }

    /** Copies the map in this entry, in the order of its keys; an empty one if there is none. */
    @SuppressWarnings("unchecked")
    private static Map<String, Object> map(Map<String, Object> state, String name) {
        return new TreeMap<>((Map<String, Object>) state.getOrDefault(name, Map.of()));
    }

    /** Copies the list in this entry; an empty one if there is none. */
    private static List<Object> list(Map<String, Object> state, String name) {
        return new ArrayList<>((List<?>) state.getOrDefault(name, List.of()));
    }

    private static LocalDateTime local(Instant at) {
        return LocalDateTime.ofInstant(at, ZoneOffset.UTC);
    }
}
