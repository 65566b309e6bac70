package dev.udo.operator;

/** An answer does not fit the output schema. */
public class SchemaException extends RuntimeException {
    public SchemaException(String message) {
        super(message);
    }
}
