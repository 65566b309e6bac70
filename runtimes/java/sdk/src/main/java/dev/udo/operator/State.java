package dev.udo.operator;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.msgpack.core.ExtensionTypeHeader;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessageFormat;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePacker;
import org.msgpack.core.MessageUnpacker;

/** States and keys as MessagePack, in the profile of docs/operator-protocol.md. */
final class State {
    private static final byte LOCAL_TIME = 1, DATE = 2, DECIMAL = 3;
    /** The number of 1970-01-01 among the profile's dates, whose day 1 is 0001-01-01. */
    private static final int EPOCH_DAY = 719_163;

    private State() {}

    static byte[] pack(Object value) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            pack(packer, value);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static Object unpack(byte[] data) {
        try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(data)) {
            return unpack(unpacker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void pack(MessagePacker p, Object value) throws IOException {
        if (value == null) {
            p.packNil();
        } else if (value instanceof Boolean v) {
            p.packBoolean(v);
        } else if (value instanceof BigInteger v) {
            p.packBigInteger(v);
        } else if (value instanceof Double || value instanceof Float) {
            p.packDouble(((Number) value).doubleValue());
        } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
            p.packLong(((Number) value).longValue());
        } else if (value instanceof String v) {
            packText(p, Text.utf8(v));
        } else if (value instanceof byte[] v) {
            p.packBinaryHeader(v.length).writePayload(v);
        } else if (value instanceof Instant v) {
            p.packTimestamp(Times.storable(v));
        } else if (value instanceof LocalDateTime v) {
            long us = Times.us(v.toInstant(ZoneOffset.UTC));
            extension(p, LOCAL_TIME, ByteBuffer.allocate(8).putLong(us).array());
        } else if (value instanceof LocalDate v) {
            Times.storable(v.atStartOfDay().toInstant(ZoneOffset.UTC));
            extension(p, DATE, ByteBuffer.allocate(4).putInt((int) v.toEpochDay() + EPOCH_DAY).array());
        } else if (value instanceof BigDecimal v) {
            extension(p, DECIMAL, v.toString().getBytes(StandardCharsets.US_ASCII));
        } else if (value instanceof Collection<?> v) {
            p.packArrayHeader(v.size());
            for (Object each : v) {
                pack(p, each);
            }
        } else if (value instanceof Map<?, ?> v) {
            packMap(p, v);
        } else if (value instanceof Record v && v.getClass().isAnnotationPresent(AsArray.class)) {
            pack(p, map(v).values());
        } else if (value instanceof Record v) {
            packMap(p, map(v));
        } else {
            throw new IllegalArgumentException("a state cannot hold a " + value.getClass().getName() + ": use text, numbers, booleans, "
                + "byte[], Instant, LocalDateTime, LocalDate, BigDecimal, lists, maps or records");
        }
    }

    private static void extension(MessagePacker p, byte type, byte[] data) throws IOException {
        p.packExtensionTypeHeader(type, data.length).writePayload(data);
    }

    private static void packText(MessagePacker p, byte[] utf8) throws IOException {
        p.packRawStringHeader(utf8.length).writePayload(utf8);
    }

    /** Writes entries in the order of their keys, so that an unchanged state has unchanged bytes. */
    private static void packMap(MessagePacker p, Map<?, ?> map) throws IOException {
        List<Map.Entry<byte[], Object>> entries = new ArrayList<>(map.size());
        for (Map.Entry<?, ?> e : map.entrySet()) {
            if (!(e.getKey() instanceof String name)) {
                throw new IllegalArgumentException("a state's maps have text as keys, not " + e.getKey());
            }
            entries.add(new AbstractMap.SimpleEntry<>(Text.utf8(name), e.getValue()));
        }
        entries.sort((a, b) -> Arrays.compareUnsigned(a.getKey(), b.getKey()));
        p.packMapHeader(entries.size());
        for (Map.Entry<byte[], Object> e : entries) {
            packText(p, e.getKey());
            pack(p, e.getValue());
        }
    }

    private static Object unpack(MessageUnpacker u) throws IOException {
        switch (u.getNextFormat().getValueType()) {
            case NIL -> {
                u.unpackNil();
                return null;
            }
            case BOOLEAN -> {
                return u.unpackBoolean();
            }
            case INTEGER -> {
                BigInteger value = u.getNextFormat() == MessageFormat.UINT64 ? u.unpackBigInteger() : null;
                return value == null ? (Object) u.unpackLong() : value.bitLength() < 64 ? (Object) value.longValue() : value;
            }
            case FLOAT -> {
                return u.unpackDouble();
            }
            case STRING -> {
                return u.unpackString();
            }
            case BINARY -> {
                return u.readPayload(u.unpackBinaryHeader());
            }
            case ARRAY -> {
                int size = u.unpackArrayHeader();
                List<Object> values = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    values.add(unpack(u));
                }
                return values;
            }
            case MAP -> {
                int size = u.unpackMapHeader();
                Map<Object, Object> map = new LinkedHashMap<>();
                for (int i = 0; i < size; i++) {
                    map.put(unpack(u), unpack(u));
                }
                return map;
            }
            default -> {
                return extension(u, u.unpackExtensionTypeHeader());
            }
        }
    }

    private static Object extension(MessageUnpacker u, ExtensionTypeHeader header) throws IOException {
        if (header.isTimestampType()) {
            return u.unpackTimestamp(header);
        }
        ByteBuffer data = ByteBuffer.wrap(u.readPayload(header.getLength()));
        return switch (header.getType()) {
            case LOCAL_TIME -> LocalDateTime.ofInstant(Times.instant(data.getLong()), ZoneOffset.UTC);
            case DATE -> LocalDate.ofEpochDay(data.getInt() - EPOCH_DAY);
            case DECIMAL -> new BigDecimal(new String(data.array(), StandardCharsets.US_ASCII));
            default -> throw new IllegalArgumentException("a state of an unknown kind: extension " + header.getType());
        };
    }

    /** A record type's components and constructor, looked up once. */
    private record Shape(RecordComponent[] components, Constructor<?> constructor) {
        static final ClassValue<Shape> OF = new ClassValue<>() {
            @Override
            protected Shape computeValue(Class<?> type) {
                RecordComponent[] components = type.getRecordComponents();
                try {
                    var made = type.getDeclaredConstructor(Stream.of(components).map(RecordComponent::getType).toArray(Class<?>[]::new));
                    made.setAccessible(true);
                    for (RecordComponent c : components) {
                        c.getAccessor().setAccessible(true);
                    }
                    return new Shape(components, made);
                } catch (NoSuchMethodException e) {
                    throw new IllegalStateException(e);
                }
            }
        };
    }

    static Map<String, Object> map(Record record) {
        Map<String, Object> map = new LinkedHashMap<>();
        try {
            for (RecordComponent c : Shape.OF.get(record.getClass()).components) {
                map.put(c.getName(), c.getAccessor().invoke(record));
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
        return map;
    }

    static <R extends Record> R record(Map<?, ?> map, Class<R> type) {
        RecordComponent[] components = Shape.OF.get(type).components;
        return record(Stream.of(components).map(c -> map.get(c.getName())).toArray(), type);
    }

    private static <R extends Record> R record(Object[] values, Class<R> type) {
        Shape shape = Shape.OF.get(type);
        if (values.length != shape.components.length) {
            throw new IllegalArgumentException("the state has " + Arrays.toString(values) + ", not a " + type.getSimpleName());
        }
        Object[] fitted = new Object[values.length];
        for (int i = 0; i < values.length; i++) {
            fitted[i] = fitted(values[i], shape.components[i].getGenericType(), shape.components[i].getName());
        }
        try {
            return type.cast(shape.constructor.newInstance(fitted));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the state " + Arrays.toString(values) + " as " + type.getName() + ": " + e, e);
        }
    }

    /** Converts a value to the wanted type, including the elements of lists and maps. */
    private static Object fitted(Object value, Type wanted, String name) {
        if (!(wanted instanceof ParameterizedType p)) {
            return wanted instanceof Class<?> type ? fittedOne(value, type, name) : value;
        }
        Object whole = fittedOne(value, (Class<?>) p.getRawType(), name);
        Type[] of = p.getActualTypeArguments();
        if (whole instanceof List<?> list) {
            List<Object> each = new ArrayList<>(list.size());
            list.forEach(v -> each.add(fitted(v, of[0], name)));
            return each;
        }
        if (whole instanceof Map<?, ?> map) {
            Map<Object, Object> each = new LinkedHashMap<>();
            map.forEach((k, v) -> each.put(k, fitted(v, of[of.length - 1], name)));
            return each;
        }
        return whole;
    }

    private static Object fittedOne(Object value, Class<?> type, String name) {
        if (type == int.class || type == Integer.class) {
            return value == null ? type == int.class ? 0 : null : (Object) Math.toIntExact((Long) value);
        }
        if (value == null && type.isPrimitive()) {
            return type == long.class ? (Object) 0L : type == double.class ? (Object) 0.0 : (Object) false;
        }
        if (type.isRecord() && value instanceof Map<?, ?> map) {
            return record(map, type.asSubclass(Record.class));
        }
        if (type.isRecord() && value instanceof List<?> list) {
            return record(list.toArray(), type.asSubclass(Record.class));
        }
        boolean fits = value == null || type.isInstance(value) || type.isPrimitive()
            && (type == long.class ? value instanceof Long : type == double.class ? value instanceof Double : value instanceof Boolean);
        if (!fits) {
            throw new IllegalArgumentException(
                "the state's " + name + " is a " + value.getClass().getSimpleName() + ", not a " + type.getSimpleName());
        }
        return value;
    }
}
