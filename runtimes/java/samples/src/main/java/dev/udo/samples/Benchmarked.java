package dev.udo.samples;

import dev.udo.operator.BatchOperator;
import dev.udo.operator.Context;
import dev.udo.operator.Event;
import dev.udo.operator.EventOperator;
import dev.udo.operator.Key;
import dev.udo.operator.KeyedBatchOperator;
import dev.udo.operator.KeyedOperator;
import dev.udo.operator.Operator;
import dev.udo.operator.Row;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.LongBuffer;
import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VectorSchemaRoot;

/** The roles timed by `python -m benchmarks languages`. */
final class Benchmarked {
    private static final double LIMIT = 500.0;

    private Benchmarked() {}

    /** The operator of a role; null if there is no such role. */
    static Operator of(String role) {
        return switch (role) {
            case "filter" -> new Filter();
            case "filter_each" -> new FilterEach();
            case "tally" -> new Tally();
            case "tally_batches" -> new TallyBatches();
            default -> null;
        };
    }

    private static final class Filter implements BatchOperator {
        @Override
        public VectorSchemaRoot process(VectorSchemaRoot batch, Context ctx) {
            int rows = batch.getRowCount();
            Float8Vector amounts = (Float8Vector) batch.getVector("amount");
            boolean complete = amounts.getNullCount() == 0;
            DoubleBuffer values = bytes(amounts, rows).asDoubleBuffer();
            int[] kept = new int[rows];
            int count = 0;
            for (int row = 0; row < rows; row++) {
                if (values.get(row) > LIMIT && (complete || !amounts.isNull(row))) {
                    kept[count++] = row;
                }
            }
            VectorSchemaRoot answer = VectorSchemaRoot.create(ctx.output(), ctx.allocator());
            for (FieldVector to : answer.getFieldVectors()) { // all columns have eight bytes per value, and the kept rows no nulls
                ((BaseFixedWidthVector) to).allocateNew(count);
                LongBuffer from = bytes(batch.getVector(to.getName()), rows).asLongBuffer();
                LongBuffer into = bytes(to, count).asLongBuffer();
                for (int n = 0; n < count; n++) {
                    into.put(n, from.get(kept[n]));
                }
                to.getValidityBuffer().setOne(0, (count + 7) / 8);
            }
            answer.setRowCount(count);
            return answer;
        }

        /** The values of a column as they are in memory. */
        private static ByteBuffer bytes(FieldVector column, int rows) {
            return column.getDataBuffer().nioBuffer(0, rows * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        }
    }

    private static final class FilterEach implements EventOperator {
        @Override
        public void process(Event event, Context ctx) {
            double amount = event.getDouble("amount");
            if (amount > LIMIT) {
                ctx.emit(Row.of("id", event.getLong("id"), "card", event.getLong("card"), "amount", amount, "at", event.getLong("at")));
            }
        }
    }

    /** The state of a key: {"n": 3}. */
    record Counted(long n) {}

    private static long before(Key key) {
        return key.state(Counted.class).map(Counted::n).orElse(0L);
    }

    private static final class Tally implements KeyedOperator {
        @Override
        public void process(Event event, Key key) {
            long n = before(key) + 1;
            key.emit(Row.of("id", event.getLong("id"), "card", event.getLong("card"), "n", n));
            key.setState(new Counted(n));
        }
    }

    private static final class TallyBatches implements KeyedBatchOperator {
        @Override
        public VectorSchemaRoot process(VectorSchemaRoot batch, Key[] keys, Context ctx) {
            Map<Key, long[]> counts = new IdentityHashMap<>();
            VectorSchemaRoot answer = VectorSchemaRoot.create(ctx.output(), ctx.allocator());
            answer.getFieldVectors().forEach(v -> ((BigIntVector) v).allocateNew(keys.length));
            BigIntVector id = (BigIntVector) batch.getVector("id");
            BigIntVector card = (BigIntVector) batch.getVector("card");
            for (int row = 0; row < keys.length; row++) {
                long[] count = counts.computeIfAbsent(keys[row], key -> new long[] {before(key)});
                ((BigIntVector) answer.getVector("id")).set(row, id.get(row));
                ((BigIntVector) answer.getVector("card")).set(row, card.get(row));
                ((BigIntVector) answer.getVector("n")).set(row, ++count[0]);
            }
            counts.forEach((key, count) -> key.setState(new Counted(count[0])));
            answer.setRowCount(keys.length);
            return answer;
        }
    }
}
