package dev.udo.samples;

import dev.udo.operator.BatchOperator;
import dev.udo.operator.Context;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Answers every event unchanged. */
class Forward implements BatchOperator {
    @Override
    public VectorSchemaRoot process(VectorSchemaRoot batch, Context ctx) {
        return batch;
    }
}
