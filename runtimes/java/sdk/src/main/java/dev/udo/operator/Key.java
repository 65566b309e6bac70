package dev.udo.operator;

import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/** The key of an event: its state, its timers, and a way to answer. */
public final class Key {
    record Timer(int key, long atUs) {}

    private static final String NO_STATE = "a state is a map or a record, not null: clear() drops it";

    private final Context ctx;
    private final List<Timer> timers;
    private final byte[] key;
    final int number;
    byte[] state;
    Long expiresUs;
    boolean changed;

    Key(Context ctx, List<Timer> timers, int number, byte[] key, byte[] state, Long expiresUs) {
        this.ctx = ctx;
        this.timers = timers;
        this.number = number;
        this.key = key;
        this.state = state;
        this.expiresUs = expiresUs;
    }

    /** The value of the key column, or a list of the values of several. */
    public Object value() {
        return State.unpack(key);
    }

    public Context context() {
        return ctx;
    }

    /** Answers an event. */
    public void emit(Map<String, ?> row) {
        ctx.emit(row);
    }

    /** The key's state; empty if it has none. The map is a copy. */
    @SuppressWarnings("unchecked")
    public Optional<Map<String, Object>> state() {
        return Optional.ofNullable(state).map(packed -> (Map<String, Object>) State.unpack(packed));
    }

    /** The key's state as a record, whose components are the state's entries; missing ones are null, 0 or false. */
    public <R extends Record> Optional<R> state(Class<R> type) {
        return state().map(map -> State.record(map, type));
    }

    /** Replaces the key's state. IllegalArgumentException, which names the key, for a value that cannot be stored. */
    public void setState(Map<String, ?> state) {
        Objects.requireNonNull(state, NO_STATE);
        try {
            this.state = State.pack(state);
        } catch (IllegalArgumentException e) {
            String shown = Text.cut(String.valueOf(value()), Text.VALUE_CHARS);
            throw new IllegalArgumentException("the state of key " + shown + " cannot be stored: " + e.getMessage(), e);
        }
        changed = true;
    }

    /** Replaces the key's state by a record. */
    public void setState(Record state) {
        setState(State.map(Objects.requireNonNull(state, NO_STATE)));
    }

    /** Drops the key's state and its expiry. */
    public void clear() {
        state = null;
        expiresUs = null;
        changed = true;
    }

    /** Sets a timer: {@link Timed#onTimer} is called for this key at the end of the first epoch whose watermark has reached {@code at}. */
    public void timer(Instant at) {
        timers.add(new Timer(number, Times.us(at)));
    }

    /** Drops the key's state at the end of the first epoch whose watermark has reached {@code at}; a later call replaces it. */
    public void expire(Instant at) {
        expiresUs = Times.us(at);
        changed = true;
    }
}
