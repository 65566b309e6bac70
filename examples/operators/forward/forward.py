"""The smallest operator: it answers with the batch that came."""

from __future__ import annotations

import pyarrow as pa
from udo_runtime import operator


@operator
def forward(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return every column and row unchanged."""
    return batch
