package dev.udo.operator;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A vectorised keyed operator. */
public interface KeyedBatchOperator extends Operator {
    /** {@code keys[i]} is the key of row i; events of one key share one Key. The answer is like a {@link BatchOperator}'s. */
    VectorSchemaRoot process(VectorSchemaRoot batch, Key[] keys, Context ctx) throws Exception;
}
