package dev.udo.operator;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.arrow.vector.*;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import java.util.Collection;
import java.util.function.IntUnaryOperator;

/** Writes values like those of {@link Event#get} into a vector. A vector's type is inspected only once. */
final class Writers {
    private Writers() {}

    /** Writes a value; ClassCastException, ArithmeticException or IllegalArgumentException if it does not fit the vector's type. */
    interface Writer {
        void write(int row, Object value);
    }

    static Writer writer(FieldVector vector, Size size) {
        Writer writer = valueWriter(vector, size);
        return (row, value) -> {
            if (value == null) {
                vector.setNull(row);
            } else {
                writer.write(row, value);
            }
        };
    }

    private static Writer valueWriter(FieldVector vector, Size size) {
        if (vector instanceof BaseIntVector v) {
            return integerWriter(v);
        }
        if (vector instanceof FloatingPointVector v) {
            return floatWriter(v);
        }
        if (vector instanceof BitVector v) {
            return (row, value) -> v.setSafe(row, (Boolean) value ? 1 : 0);
        }
        if (vector instanceof VarCharVector v) {
            return (row, value) -> v.setSafe(row, size.counted(Text.utf8((String) value)));
        }
        if (vector instanceof LargeVarCharVector v) {
            return (row, value) -> v.setSafe(row, size.counted(Text.utf8((String) value)));
        }
        if (vector instanceof VarBinaryVector v) {
            return (row, value) -> v.setSafe(row, size.counted((byte[]) value));
        }
        if (vector instanceof LargeVarBinaryVector v) {
            return (row, value) -> v.setSafe(row, size.counted((byte[]) value));
        }
        if (vector instanceof FixedSizeBinaryVector v) {
            return (row, value) -> v.setSafe(row, (byte[]) value);
        }
        if (vector instanceof TimeStampVector v) {
            TimeUnit unit = ((ArrowType.Timestamp) v.getField().getType()).getUnit();
            return (row, value) -> {
                Instant at = value instanceof LocalDateTime local ? local.toInstant(ZoneOffset.UTC) : (Instant) value;
                v.setSafe(row, Times.ticks(at, unit));
            };
        }
        if (vector instanceof DateDayVector v) {
            return (row, value) -> v.setSafe(row, Math.toIntExact(((LocalDate) value).toEpochDay()));
        }
        if (vector instanceof DateMilliVector v) {
            return (row, value) -> v.setSafe(row, ((LocalDate) value).toEpochDay() * 86_400_000L);
        }
        if (vector instanceof TimeSecVector v) {
            return (row, value) -> v.setSafe(row, ((LocalTime) value).toSecondOfDay());
        }
        if (vector instanceof TimeMilliVector v) {
            return (row, value) -> v.setSafe(row, (int) (((LocalTime) value).toNanoOfDay() / 1_000_000));
        }
        if (vector instanceof TimeMicroVector v) {
            return (row, value) -> v.setSafe(row, ((LocalTime) value).toNanoOfDay() / 1_000);
        }
        if (vector instanceof TimeNanoVector v) {
            return (row, value) -> v.setSafe(row, ((LocalTime) value).toNanoOfDay());
        }
        if (vector instanceof DurationVector v) {
            ChronoUnit unit = Times.unit(((ArrowType.Duration) v.getField().getType()).getUnit());
            return (row, value) -> v.setSafe(row, ((Duration) value).dividedBy(unit.getDuration()));
        }
        if (vector instanceof DecimalVector v) {
            return (row, value) -> v.setSafe(row, ((BigDecimal) value).setScale(v.getScale()));
        }
        if (vector instanceof Decimal256Vector v) {
            return (row, value) -> v.setSafe(row, ((BigDecimal) value).setScale(v.getScale()));
        }
        return nestedWriter(vector, size);
    }

    /** Takes floating point numbers, and integers as far as the type holds every one: Python refuses the others, too. */
    private static Writer floatWriter(FloatingPointVector v) {
        int bits = v instanceof Float8Vector ? 53 : v instanceof Float4Vector ? 24 : 11;
        return (row, value) -> {
            if (value instanceof Double || value instanceof Float) {
                v.setSafeWithPossibleTruncate(row, ((Number) value).doubleValue());
                return;
            }
            if (value instanceof BigDecimal) {
                throw new ClassCastException("a decimal, which would be rounded: answer its doubleValue()");
            }
            long number = whole(value);
            if (number < -1L << bits || number > 1L << bits) {
                throw new ArithmeticException("an integer beyond 2^" + bits + ", which may be rounded: answer a floating point number");
            }
            v.setSafeWithPossibleTruncate(row, number);
        };
    }

    private static Writer integerWriter(BaseIntVector v) {
        if (v instanceof UInt8Vector) {
            return unsignedWriter(v);
        }
        int bits = ((BaseFixedWidthVector) v).getTypeWidth() * 8;
        boolean signed = ((ArrowType.Int) v.getField().getType()).getIsSigned();
        long least = signed ? -1L << (bits - 1) : 0;
        long most = signed ? ~least : (1L << bits) - 1;
        return (row, value) -> {
            long number = whole(value);
            if (number < least || number > most) {
                throw new ArithmeticException("beyond its " + bits + " bits");
            }
            v.setWithPossibleTruncate(row, number);
        };
    }

    private static Writer unsignedWriter(BaseIntVector v) {
        return (row, value) -> {
            BigInteger number = value instanceof BigInteger big ? big : BigInteger.valueOf(whole(value));
            if (number.signum() < 0 || number.bitLength() > 64) {
                throw new ArithmeticException("beyond its 64 bits");
            }
            v.setWithPossibleTruncate(row, number.longValue());
        };
    }

    private static long whole(Object value) {
        if (value instanceof BigInteger big) {
            return big.longValueExact();
        }
        if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
            return ((Number) value).longValue();
        }
        throw new ClassCastException("not an integer");
    }

    private static Writer nestedWriter(FieldVector vector, Size size) {
        if (vector instanceof StructVector v) {
            Map<String, Writer> fields = new LinkedHashMap<>();
            v.getChildrenFromFields().forEach(child -> fields.put(child.getName(), writer(child, size)));
            return (row, value) -> {
                v.setIndexDefined(row);
                fields.forEach((name, field) -> field.write(row, ((Map<?, ?>) value).get(name)));
            };
        }
        if (vector instanceof MapVector v) {
            Writer entry = pairWriter((StructVector) v.getDataVector(), size);
            return listWriter(counted(entry, v, size), v::startNewValue, v::endValue);
        }
        if (vector instanceof ListVector v) {
            return listWriter(counted(writer(v.getDataVector(), size), v, size), v::startNewValue, v::endValue);
        }
        if (vector instanceof LargeListVector v) {
            return listWriter(counted(writer(v.getDataVector(), size), v, size), row -> (int) v.startNewValue(row), v::endValue);
        }
        if (vector instanceof FixedSizeListVector v) {
            return listWriter(writer(v.getDataVector(), size), v::startNewValue, (row, elements) -> {
                if (elements != v.getListSize()) {
                    throw new IllegalArgumentException("expected " + v.getListSize() + " elements");
                }
            });
        }
        if (vector instanceof NullVector) {
            return (row, value) -> {
                throw new ClassCastException("always null");
            };
        }
        throw new SchemaException("column \"" + vector.getName() + "\": rows of " + vector.getField().getType()
            + " cannot be emitted; answer whole batches");
    }

    private static Writer pairWriter(StructVector v, Size size) {
        Writer key = writer((FieldVector) v.getChildByOrdinal(0), size);
        Writer item = writer((FieldVector) v.getChildByOrdinal(1), size);
        return (row, value) -> {
            Map.Entry<?, ?> entry = (Map.Entry<?, ?>) value;
            v.setIndexDefined(row);
            key.write(row, entry.getKey());
            item.write(row, entry.getValue());
        };
    }

    /** A writer of list elements, which also counts their fixed bytes. */
    private static Writer counted(Writer element, FieldVector list, Size size) {
        int fixed = Size.fixed(list.getChildrenFromFields());
        return (row, value) -> {
            size.bytes += fixed;
            element.write(row, value);
        };
    }

    private static Writer listWriter(Writer element, IntUnaryOperator start, Ends end) {
        return (row, value) -> {
            Collection<?> values = value instanceof Map<?, ?> map ? map.entrySet() : (Collection<?>) value;
            int at = start.applyAsInt(row);
            for (Object each : values) {
                element.write(at++, each);
            }
            end.at(row, values.size());
        };
    }

    private interface Ends {
        void at(int row, int size);
    }
}
