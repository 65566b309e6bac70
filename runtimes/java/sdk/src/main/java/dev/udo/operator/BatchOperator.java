package dev.udo.operator;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A vectorised operator. */
public interface BatchOperator extends Operator {
    /** The answer has the manifest's output columns and any number of rows; null answers none. It is closed once it is sent. */
    VectorSchemaRoot process(VectorSchemaRoot batch, Context ctx) throws Exception;
}
