package dev.udo.operator;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import udo.operator.v1.Operator.Part;

/** Keys, their states and timers: the tables whose schemas the protocol fixes. */
final class Keyed {
    private static final ArrowType INT32 = new ArrowType.Int(32, true);
    private static final ArrowType INT64 = new ArrowType.Int(64, true);
    private static final ArrowType BINARY = new ArrowType.Binary();
    private static final Field NUMBER = Field.nullable("key", INT32);
    private static final Field STATE = Field.nullable("state", BINARY);
    private static final Field EXPIRES = Field.nullable("expires_us", INT64);

    private final VectorSchemaRoot index;
    private final VectorSchemaRoot keys;
    private final VectorSchemaRoot due;
    private final VectorSchemaRoot states;
    private final VectorSchemaRoot set;
    private final List<Key.Timer> timers = new ArrayList<>();

    Keyed(BufferAllocator allocator) {
        index = table(allocator, NUMBER);
        keys = table(allocator, Field.nullable("key", BINARY), STATE, EXPIRES);
        due = table(allocator, NUMBER, Field.nullable("at_us", INT64));
        states = table(allocator, NUMBER, STATE, EXPIRES);
        set = table(allocator, NUMBER, Field.nullable("at_us", INT64));
    }

    private static VectorSchemaRoot table(BufferAllocator allocator, Field... columns) {
        return VectorSchemaRoot.create(new Schema(List.of(columns)), allocator);
    }

    /** The keys that a request touches. */
    Key[] touched(Wire.Received request, Context ctx) throws IOException {
        timers.clear();
        request.load(Part.Table.KEYS, keys);
        VarBinaryVector packed = (VarBinaryVector) keys.getVector(0);
        VarBinaryVector state = (VarBinaryVector) keys.getVector(1);
        BigIntVector expires = (BigIntVector) keys.getVector(2);
        Key[] touched = new Key[keys.getRowCount()];
        for (int i = 0; i < touched.length; i++) {
            byte[] before = state.isNull(i) ? null : state.get(i);
            touched[i] = new Key(ctx, timers, i, packed.get(i), before, expires.isNull(i) ? null : (Long) expires.get(i));
        }
        return touched;
    }

    /** The key of each event. */
    Key[] rows(Wire.Received request, Key[] touched) throws IOException {
        request.load(Part.Table.INDEX, index);
        IntVector numbers = (IntVector) index.getVector(0);
        Key[] rows = new Key[index.getRowCount()];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = touched[numbers.get(i)];
        }
        return rows;
    }

    /** The timers that are due, in the order in which they fire. */
    List<Key.Timer> due(Wire.Received request) throws IOException {
        request.load(Part.Table.DUE, due);
        IntVector numbers = (IntVector) due.getVector(0);
        BigIntVector times = (BigIntVector) due.getVector(1);
        List<Key.Timer> found = new ArrayList<>();
        for (int i = 0; i < due.getRowCount(); i++) {
            found.add(new Key.Timer(numbers.get(i), times.get(i)));
        }
        return found;
    }

    /** The tables STATES and SET of an answer; `all`: including unchanged states. */
    List<Wire.Table> changes(Key[] touched, boolean all) {
        clear(states);
        int count = 0;
        for (Key key : touched) {
            if (!key.changed && !all) {
                continue;
            }
            ((IntVector) states.getVector(0)).setSafe(count, key.number);
            if (key.state != null) {
                ((VarBinaryVector) states.getVector(1)).setSafe(count, key.state);
            }
            if (key.expiresUs != null) {
                ((BigIntVector) states.getVector(2)).setSafe(count, key.expiresUs);
            }
            count++;
        }
        states.setRowCount(count);
        clear(set);
        for (int i = 0; i < timers.size(); i++) {
            ((IntVector) set.getVector(0)).setSafe(i, timers.get(i).key());
            ((BigIntVector) set.getVector(1)).setSafe(i, timers.get(i).atUs());
        }
        set.setRowCount(timers.size());
        return List.of(new Wire.Table(Part.Table.STATES, states), new Wire.Table(Part.Table.SET, set));
    }

    private static void clear(VectorSchemaRoot table) {
        table.getFieldVectors().forEach(FieldVector::reset);
    }
}
