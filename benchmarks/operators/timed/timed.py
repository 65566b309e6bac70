"""An operator that takes a real time per event without using a processor for it: SERVICE_US, an environment variable."""

from __future__ import annotations

import os
import time

import pyarrow as pa
from udo_runtime import operator

SERVICE_S = int(os.environ.get("SERVICE_US", "1000")) / 1e6


@operator
def run(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sleep for all events, then return them unchanged."""
    time.sleep(SERVICE_S * batch.num_rows)
    return batch
