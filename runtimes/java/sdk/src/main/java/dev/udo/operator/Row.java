package dev.udo.operator;

import java.util.LinkedHashMap;
import java.util.Map;

/** One answered event: the manifest's output columns. A map, so that any other map will do as well. */
public final class Row {
    private Row() {}

    /** {@code Row.of("id", 7, "flagged", true)}; values may be null. */
    public static Map<String, Object> of(Object... namesAndValues) {
        if (namesAndValues.length % 2 != 0) {
            throw new IllegalArgumentException("expected column, value, column, value ...");
        }
        Map<String, Object> row = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            row.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return row;
    }
}
