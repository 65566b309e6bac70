package dev.udo.samples;

import dev.udo.operator.Context;
import dev.udo.operator.Event;
import dev.udo.operator.EventOperator;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedBatchOperator;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Migrating;
import dev.udo.operator.Operator;
import dev.udo.operator.Row;
import dev.udo.operator.Timed;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;

/** The conformance operator (docs/operator-protocol.md, Conformance), in the role named by UDO_CONFORMANCE or by the last argument. */
final class Conformance {
    private Conformance() {}

    static Operator of(String role) {
        return switch (role) {
            case "forward" -> new Forward() {
                @Override
                public void open(Context ctx) {
                    opened();
                }
            };
            case "each" -> new Each();
            case "events" -> new Events();
            case "keyed" -> new Keyed();
            case "keyed_batches" -> new KeyedBatches();
            case "history", "history_wrapped" -> new History(role.equals("history_wrapped"));
            default -> {
                Operator benchmarked = Benchmarked.of(role);
                if (benchmarked == null) {
                    throw new IllegalArgumentException("no role of the conformance operator (UDO_CONFORMANCE): " + role);
                }
                yield benchmarked;
            }
        };
    }

    private static void opened() {
        if ("fails".equals(System.getenv("UDO_CONFORMANCE_OPEN"))) {
            throw new IllegalStateException("no model");
        }
    }

    private static final class Each implements EventOperator {
        @Override
        public void open(Context ctx) {
            opened();
        }

        @Override
        public void process(Event event, Context ctx) {
            Map<String, Object> row = new LinkedHashMap<>();
            for (Field field : ctx.input().getFields()) {
                row.put(field.getName(), event.get(field.getName()));
            }
            ctx.emit(row);
        }
    }

    private static final class Events implements EventOperator {
        @Override
        public void open(Context ctx) {
            opened();
        }

        @Override
        public void process(Event event, Context ctx) throws Exception {
            long n = event.getLong("n");
            switch (event.getString("do")) {
                case "none" -> {
                    return;
                }
                case "twice" -> ctx.emit(Row.of("n", n + 1));
                case "log" -> {
                    for (Level level : List.of(Level.DEBUG, Level.INFO, Level.WARNING, Level.ERROR)) {
                        ctx.log().log(level, "log " + n);
                    }
                }
                case "print" -> System.out.println("print " + n);
                case "raise" -> throw new IllegalStateException("raise " + n);
                case "endless" -> {
                    while (true) {
                        ctx.emit(Row.of("n", n + 1));
                    }
                }
                case "wrong" -> ctx.emit(Row.of("n", "text"));
                case "sleep" -> Thread.sleep(n);
                case "hang" -> Thread.sleep(Long.MAX_VALUE);
                case "exit" -> System.exit(3);
                case "abort" -> new ProcessBuilder("sh", "-c", "kill -KILL $PPID").start().waitFor();
                case "memory" -> {
                    while (true) { // off the heap, which has a bound of its own
                        ctx.allocator().buffer(1 << 20).setOne(0, 1 << 20);
                    }
                }
                default -> {}
            }
            ctx.emit(Row.of("n", n + 1));
        }

        @Override
        public void close() {
            System.out.println("closed");
        }
    }

    private interface Fires extends Timed {
        @Override
        default void onTimer(Instant at, Key key) {
            key.emit(Row.of("k", key.value(), "n", Keyed.add(key, 1), "at", at));
        }
    }

    private static final class Keyed implements KeyedOperator, Fires, Migrating {
        @Override
        public void open(Context ctx) {
            opened();
        }

        private static long add(Key key, long n) {
            Map<String, Object> state = key.state().orElseGet(LinkedHashMap::new);
            long sum = (Long) state.getOrDefault("n", 0L) + n;
            state.put("n", sum);
            key.setState(state);
            return sum;
        }

        @Override
        public void process(Event event, Key key) {
            long n = event.getLong("n");
            Instant at = event.getInstant("at");
            switch (event.getString("do")) {
                case "count" -> key.emit(Row.of("k", key.value(), "n", add(key, n), "at", null));
                case "get" -> key.emit(Row.of("k", key.value(), "n", key.state().map(s -> s.get("n")).orElse(null), "at", null));
                case "copy" -> key.state().ifPresent(key::setState);
                case "clear" -> key.clear();
                case "timer" -> key.timer(at);
                case "expire" -> key.expire(at);
                case "watermark" -> key.emit(Row.of("k", key.value(), "n", null, "at", key.context().watermark().orElse(null)));
                case "raise" -> {
                    add(key, 1000);
                    key.timer(at);
                    throw new IllegalStateException("raise " + n);
                }
                default -> throw new IllegalArgumentException(event.getString("do"));
            }
        }

        @Override
        public Map<String, Object> migrate(Map<String, Object> old, int fromVersion) {
            old.put("n", (Long) old.getOrDefault("n", 0L) * 10);
            old.put("from", fromVersion);
            return old;
        }
    }

    private static final class KeyedBatches implements KeyedBatchOperator, Fires {
        @Override
        public void open(Context ctx) {
            opened();
        }

        @Override
        public VectorSchemaRoot process(VectorSchemaRoot batch, Key[] keys, Context ctx) {
            BigIntVector added = (BigIntVector) batch.getVector("n");
            TimeStampMicroTZVector times = (TimeStampMicroTZVector) batch.getVector("at");
            VarCharVector names = new VarCharVector("k", ctx.allocator());
            BigIntVector sums = new BigIntVector("n", ctx.allocator());
            FieldVector none = ctx.output().findField("at").createVector(ctx.allocator());
            List<FieldVector> columns = List.of(names, sums, none);
            columns.forEach(FieldVector::allocateNew);
            for (int i = 0; i < keys.length; i++) {
                long sum = Keyed.add(keys[i], added.get(i));
                switch (batch.getVector("do").getObject(i).toString()) {
                    case "timer" -> keys[i].timer(Instant.EPOCH.plus(times.get(i), ChronoUnit.MICROS));
                    case "expire" -> keys[i].expire(Instant.EPOCH.plus(times.get(i), ChronoUnit.MICROS));
                    default -> {}
                }
                names.setSafe(i, ((String) keys[i].value()).getBytes(StandardCharsets.UTF_8));
                sums.setSafe(i, sum);
            }
            columns.forEach(column -> column.setValueCount(keys.length));
            return new VectorSchemaRoot(ctx.output(), columns, keys.length);
        }
    }
}
