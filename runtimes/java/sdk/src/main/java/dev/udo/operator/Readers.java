package dev.udo.operator;

import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.*;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.types.pojo.ArrowType;

/** Reads values of a vector as Java values: see {@link Event#get}. A vector's type is inspected only once. */
final class Readers {
    private Readers() {}

    interface Reader {
        Object read(int row);
    }

    static Reader reader(FieldVector vector) {
        Reader reader = valueReader(vector);
        return row -> vector.isNull(row) ? null : reader.read(row);
    }

    private static Reader valueReader(FieldVector vector) {
        if (vector instanceof BaseIntVector v) {
            if (v instanceof UInt8Vector) {
                return row -> {
                    long bits = v.getValueAsLong(row);
                    return bits >= 0 ? (Object) bits : new BigInteger(Long.toUnsignedString(bits));
                };
            }
            return v::getValueAsLong;
        }
        if (vector instanceof FloatingPointVector v) {
            return v::getValueAsDouble;
        }
        if (vector instanceof TimeStampVector v) {
            ArrowType.Timestamp type = (ArrowType.Timestamp) v.getField().getType();
            return row -> {
                Instant at = Instant.EPOCH.plus(v.get(row), Times.unit(type.getUnit()));
                return type.getTimezone() == null ? LocalDateTime.ofInstant(at, ZoneOffset.UTC) : at;
            };
        }
        if (vector instanceof ListVector || vector instanceof LargeListVector || vector instanceof FixedSizeListVector) {
            return listReader(vector);
        }
        if (vector instanceof StructVector struct) {
            Map<String, Reader> fields = new LinkedHashMap<>();
            struct.getChildrenFromFields().forEach(child -> fields.put(child.getName(), reader(child)));
            return row -> {
                Map<String, Object> value = new LinkedHashMap<>();
                fields.forEach((name, field) -> value.put(name, field.read(row)));
                return value;
            };
        }
        if (vector instanceof VarCharVector || vector instanceof LargeVarCharVector) {
            return row -> vector.getObject(row).toString();
        }
        if (vector instanceof DateDayVector v) {
            return row -> LocalDate.ofEpochDay(v.get(row));
        }
        if (vector instanceof DateMilliVector v) {
            return row -> v.getObject(row).toLocalDate();
        }
        if (vector instanceof TimeSecVector v) {
            return row -> LocalTime.ofSecondOfDay(v.get(row));
        }
        if (vector instanceof TimeMilliVector v) {
            return row -> LocalTime.ofNanoOfDay(v.get(row) * 1_000_000L);
        }
        if (vector instanceof TimeMicroVector v) {
            return row -> LocalTime.ofNanoOfDay(v.get(row) * 1_000);
        }
        if (vector instanceof TimeNanoVector v) {
            return row -> LocalTime.ofNanoOfDay(v.get(row));
        }
        return vector::getObject; // booleans, bytes, decimals, durations
    }

    private static Reader listReader(FieldVector vector) {
        Reader element = reader(vector.getChildrenFromFields().get(0));
        return row -> {
            int[] range = range(vector, row);
            List<Object> values = new ArrayList<>(range[1] - range[0]);
            for (int i = range[0]; i < range[1]; i++) {
                values.add(element.read(i));
            }
            if (!(vector instanceof MapVector)) {
                return values;
            }
            Map<Object, Object> map = new LinkedHashMap<>();
            for (Object entry : values) {
                Object[] pair = ((Map<?, ?>) entry).values().toArray();
                map.put(pair[0], pair[1]);
            }
            if (map.size() < values.size()) {
                String shown = Text.cut(values.toString(), Text.VALUE_CHARS);
                throw new IllegalArgumentException("\"" + vector.getName() + "\": a map has a key twice: " + shown);
            }
            return map;
        };
    }

    private static int[] range(FieldVector vector, int row) {
        if (vector instanceof ListVector v) {
            return new int[] {v.getElementStartIndex(row), v.getElementEndIndex(row)};
        }
        if (vector instanceof LargeListVector v) {
            return new int[] {(int) v.getElementStartIndex(row), (int) v.getElementEndIndex(row)};
        }
        int size = ((FixedSizeListVector) vector).getListSize();
        return new int[] {row * size, row * size + size};
    }
}
