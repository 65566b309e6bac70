"""The filter of the throughput benchmark: about half of the events pass."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

THRESHOLD = 500.0


@operator
def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the events with an amount above the threshold."""
    return batch.filter(pc.greater(batch.column("amount"), THRESHOLD))
