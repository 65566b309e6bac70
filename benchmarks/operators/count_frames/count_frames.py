"""The keyed operator of the state benchmark, a frame at a time: numbers each card's events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from udo_runtime import FrameKeys, FrameStates, Operator


class CountFrames(Operator):
    """A running count per card."""

    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> dict[str, Any]:
        """The events with their numbers."""
        counts, numbers = states.column("n", pa.int64(), 0).to_pylist(), []
        for key in keys.index.to_pylist():
            counts[key] += 1
            numbers.append(counts[key])
        states.put("n", counts)
        return {"id": events.column("id"), "card": events.column("card"), "n": numbers}
