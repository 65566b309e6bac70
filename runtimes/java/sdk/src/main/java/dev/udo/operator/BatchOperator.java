package dev.udo.operator;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A vectorised operator. */
public interface BatchOperator extends Operator {
    /** Returns the answer to a batch: the manifest's output columns and any number of rows; null for none. It is closed once it is sent. */
    VectorSchemaRoot process(VectorSchemaRoot batch, Context ctx) throws Exception;
}
