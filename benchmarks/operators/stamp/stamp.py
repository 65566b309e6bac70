"""Answers every event with the version that answered it: pushed as several versions by the update benchmark."""

from __future__ import annotations

import pyarrow as pa
from udo_runtime import Context, Operator


class Stamp(Operator):
    """id -> (id, version)."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
        """One answer per event."""
        version = pa.array([int(ctx.version)] * batch.num_rows, pa.int64())
        return pa.RecordBatch.from_arrays([batch.column("id"), version], names=["id", "version"])
