package dev.udo.operator;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/**
 * One event. Its methods take a column's name; if there is no such column, or it has another type, they throw IllegalArgumentException and
 * name what there is. The methods of primitive types return 0 or false if the column is null, as in JDBC.
 */
public final class Event {
    private record Column(FieldVector vector, Readers.Reader reader) {}

    private final Map<String, Column> columns = new TreeMap<>();
    private int row;

    /** The first event of a batch. */
    public Event(VectorSchemaRoot batch) {
        for (FieldVector vector : batch.getFieldVectors()) {
            columns.put(vector.getName(), new Column(vector, Readers.reader(vector)));
        }
    }

    /** Turns this into the event of another row. */
    Event at(int row) {
        this.row = row;
        return this;
    }

    private Column column(String name) {
        Column column = columns.get(name);
        if (column == null) {
            throw new IllegalArgumentException("the event has no column \"" + name + "\"; there are: " + String.join(", ", columns.keySet()));
        }
        return column;
    }

    public boolean isNull(String name) {
        return column(name).vector.isNull(row);
    }

    /** The value of an integer column of any width. */
    public long getLong(String name) {
        Column c = column(name);
        if (c.vector instanceof BigIntVector v) {
            return v.isNull(row) ? 0 : v.get(row);
        }
        Long value = as(name, c, Long.class, "an integer");
        return value == null ? 0 : value;
    }

    /** The value of a column of floating point numbers. */
    public double getDouble(String name) {
        Column c = column(name);
        if (c.vector instanceof Float8Vector v) {
            return v.isNull(row) ? 0 : v.get(row);
        }
        Double value = as(name, c, Double.class, "a floating point number");
        return value == null ? 0 : value;
    }

    public boolean getBoolean(String name) {
        Boolean value = as(name, column(name), Boolean.class, "a boolean");
        return value != null && value;
    }

    /** The value of a column of text, or null. */
    public String getString(String name) {
        Column c = column(name);
        if (c.vector instanceof VarCharVector v) {
            return v.isNull(row) ? null : new String(v.get(row), StandardCharsets.UTF_8);
        }
        return as(name, c, String.class, "text");
    }

    /** The value of a column of timestamps, or null; those without a zone are taken as UTC. */
    public Instant getInstant(String name) {
        Column c = column(name);
        if (c.reader.read(row) instanceof LocalDateTime local) {
            return local.toInstant(ZoneOffset.UTC);
        }
        return as(name, c, Instant.class, "a timestamp");
    }

    /**
     * Any column's value: null, Boolean, Long (or BigInteger), Double, String, byte[], Instant, LocalDateTime (without a zone), LocalDate,
     * LocalTime, Duration, BigDecimal, List, or Map.
     */
    public Object get(String name) {
        return column(name).reader.read(row);
    }

    private <T> T as(String name, Column c, Class<T> type, String want) {
        Object value = c.reader.read(row);
        if (value != null && !type.isInstance(value)) {
            throw new IllegalArgumentException("column \"" + name + "\" is " + c.vector.getField().getType() + ", not " + want);
        }
        return type.cast(value);
    }

    /** The event as text, for messages. */
    @Override
    public String toString() {
        return List.copyOf(columns.keySet()).stream().map(name -> name + "=" + get(name)).toList().toString();
    }
}
