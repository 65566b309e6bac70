package dev.udo.operator;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A vectorised operator. */
public interface BatchOperator extends Operator {
    /** Answers a batch: with the manifest's output columns and any number of rows; null for none. The answer is closed once it is sent. */
    VectorSchemaRoot process(VectorSchemaRoot batch, Context ctx) throws Exception;
}
