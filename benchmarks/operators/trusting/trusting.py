"""A filter and an operator that forwards, each with and without the checks of incoming bodies: the difference is the cost of the checks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import Context, Operator

from udo_protocol.formats import body


def unchecked(data: pa.Buffer, schema: pa.Schema, rows: int, *, text: bool = True) -> pa.RecordBatch:
    """Decode without any checks, as if senders could be trusted."""
    return pa.ipc.read_record_batch(data, schema)


class Forward(Operator):
    """Every column and row, unchanged."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
        """Return the batch."""
        return batch


class Filter(Operator):
    """About half of the events."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
        """Return the events with an amount above the threshold."""
        return batch.filter(pc.greater(batch.column("amount"), 500.0))


class Trusting:
    """Switches the checks of its process off."""

    def open(self, ctx: Context) -> None:
        """Switch the checks off before the first event."""
        body.read = unchecked


class TrustingForward(Trusting, Forward):
    """Forward, unchecked."""


class TrustingFilter(Trusting, Filter):
    """Filter, unchecked."""
