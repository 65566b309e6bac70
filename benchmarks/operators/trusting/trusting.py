"""A filter and what answers what came, each also without the checks of what came: what these cost is the difference."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import Context, Operator

from udo_protocol.formats import body


def unchecked(data: pa.Buffer, schema: pa.Schema, rows: int, *, text: bool = True) -> pa.RecordBatch:
    """What decoding would be among friends."""
    return pa.ipc.read_record_batch(data, schema)


class Forward(Operator):
    """Every column, every row, as it came."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
        """The same."""
        return batch


class Filter(Operator):
    """About half of the events."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
        """Those with an amount above the threshold."""
        return batch.filter(pc.greater(batch.column("amount"), 500.0))


class Trusting:
    """Switches the checks of its process off."""

    def open(self, ctx: Context) -> None:
        """Before the first event."""
        body.read = unchecked


class TrustingForward(Trusting, Forward):
    """Forward, unchecked."""


class TrustingFilter(Trusting, Filter):
    """Filter, unchecked."""
