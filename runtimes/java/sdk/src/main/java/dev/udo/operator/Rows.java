package dev.udo.operator;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** Gathers emitted rows into a batch of bounded size. */
final class Rows {
    private final VectorSchemaRoot root;
    private final List<Writers.Writer> writers = new ArrayList<>();
    private final Size size = new Size(); // continues from the rows so far
    private final int rowBytes;
    private final long bound;
    private long bytes;
    private int count;

    Rows(Schema schema, BufferAllocator allocator, long bound) {
        this.bound = bound;
        root = VectorSchemaRoot.create(schema, allocator);
        rowBytes = Size.fixed(root.getFieldVectors());
        for (FieldVector vector : root.getFieldVectors()) {
            writers.add(Writers.writer(vector, size));
        }
    }

    void add(Map<String, ?> row) {
        List<FieldVector> vectors = root.getFieldVectors();
        size.bytes = bytes + rowBytes;
        requireBounded(size.bytes); // before the vectors double their size
        for (int i = 0; i < vectors.size(); i++) {
            String name = vectors.get(i).getName();
            Object value = row.get(name);
            if (row.size() != vectors.size() || value == null && !row.containsKey(name)) {
                List<String> names = vectors.stream().map(FieldVector::getName).toList();
                throw new SchemaException(
                    "expected an event with the columns " + names + "; the operator answered " + new TreeSet<>(row.keySet()));
            }
            try {
                writers.get(i).write(count, value);
            } catch (ClassCastException | ArithmeticException | IllegalArgumentException | UnsupportedOperationException e) {
                String shown = Text.cut(String.valueOf(value), Text.VALUE_CHARS);
                throw new SchemaException("column \"" + name + "\": expected " + vectors.get(i).getField().getType()
                    + ", the operator answered " + shown + " (" + (value == null ? "null" : value.getClass().getSimpleName()) + "): "
                    + e.getMessage());
            }
        }
        requireBounded(size.bytes);
        bytes = size.bytes;
        count++;
    }

    private void requireBounded(long now) {
        if (now > bound) {
            bytes = now; // it stays too large, whatever the operator does with the exception
            throw new TooLargeException(count + 1, 0, now, bound);
        }
    }

    /** All rows as a batch, which is valid until the next call of clear. */
    VectorSchemaRoot batch() {
        requireBounded(bytes);
        root.setRowCount(count);
        return root;
    }

    void clear() {
        root.clear();
        count = 0;
        bytes = 0;
    }
}
