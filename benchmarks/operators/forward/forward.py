"""Answers with its input, so that only the cost of the round trip remains."""

from __future__ import annotations

import pyarrow as pa
from udo_runtime import operator


@operator
def forward(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return every column and row unchanged."""
    return batch
