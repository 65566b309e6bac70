package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.junit.jupiter.api.Test;

class RowsTest {
    private static final ArrowType DOUBLE = new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
    private static final ArrowType FLOAT = new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE);
    private static final BufferAllocator ALLOCATOR = new RootAllocator();

    private static Rows rows(ArrowType type) {
        return new Rows(new Schema(List.of(Field.nullable("v", type))), ALLOCATOR, 1 << 20);
    }

    /** The values in a column of this type to which these were written. */
    private static List<Object> kept(ArrowType type, Object... values) {
        Rows rows = rows(type);
        try {
            Arrays.stream(values).forEach(value -> rows.add(Map.of("v", value)));
            FieldVector vector = rows.batch().getVector(0);
            return IntStream.range(0, values.length).<Object>mapToObj(row -> vector.getObject(row).toString()).toList();
        } finally {
            rows.clear();
        }
    }

    private static String refused(ArrowType type, Object value) {
        Rows rows = rows(type);
        try {
            String said = assertThrows(SchemaException.class, () -> rows.add(Map.of("v", value)), type + " took " + value).getMessage();
            assertTrue(said.startsWith("column \"v\": expected " + type + ", the operator answered "), said);
            return said;
        } finally {
            rows.clear();
        }
    }

    @Test
    void halfASurrogatePairIsNoText() {
        for (ArrowType type : List.of(new ArrowType.Utf8(), new ArrowType.LargeUtf8())) {
            for (String broken : List.of("\ud83d", "a\ude00b", "\ud83d\ude00\ud83d")) {
                assertTrue(refused(type, broken).contains("half a surrogate pair"));
            }
            assertEquals(List.of("?", "ß€\ud83d\ude00", ""), kept(type, "?", "ß€\ud83d\ude00", ""));
        }
    }

    @Test
    void anIntegerThatAFloatingColumnWouldRoundIsRefused() {
        long most = 1L << 53;
        for (long beyond : new long[] {most + 1, -most - 1, Long.MAX_VALUE, Long.MIN_VALUE}) {
            assertTrue(refused(DOUBLE, beyond).contains("beyond 2^53"));
            refused(DOUBLE, BigInteger.valueOf(beyond));
            refused(DOUBLE, BigDecimal.valueOf(beyond));
            refused(FLOAT, beyond);
        }
        refused(DOUBLE, BigInteger.ONE.shiftLeft(64));
        refused(DOUBLE, new BigDecimal("0.1"));
        refused(DOUBLE, "1");
        assertTrue(refused(FLOAT, (1 << 24) + 1).contains("beyond 2^24"));
        assertEquals(List.of("9.007199254740992E15", "-9.007199254740992E15", "0.1", "1.0E300", "3.0"),
            kept(DOUBLE, most, -most, 0.1, 1e300, BigInteger.valueOf(3)));
        assertEquals(List.of("1.6777216E7", "-1.6777216E7", "0.1", "3.0"), kept(FLOAT, 1 << 24, -(1L << 24), 0.1, (short) 3));
    }

    @Test
    void aDecimalThatIsTooLongNamesItsColumn() {
        ArrowType decimal = new ArrowType.Decimal(5, 2, 128);
        refused(decimal, new BigDecimal("1000.00"));
        refused(decimal, new BigDecimal("1.234"));
        refused(new ArrowType.Decimal(40, 0, 256), BigDecimal.TEN.pow(40));
        assertEquals(List.of("999.99"), kept(decimal, new BigDecimal("999.99")));
    }

    @Test
    void aLongValueIsNotShownInFull() {
        String said = refused(new ArrowType.Int(64, true), "x".repeat(2_000_000));
        assertTrue(said.length() < 2_000 && said.contains("characters cut"), said.substring(0, 100));
    }
}
