"""The keyed operator of the state benchmark with its state in columns: numbers each card's events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import FrameKeys, FrameStates, Operator


class CountColumns(Operator):
    """A running count per card."""

    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> dict[str, Any]:
        """The events with their numbers."""
        order = pc.sort_indices(keys.index)  # by card, the events of each in their order
        by_card = keys.index.take(order)
        counts = by_card.value_counts().field("counts")
        before = states.column("n", pa.int64(), 0)
        first = pc.subtract(pc.add(before, counts), pc.cumulative_sum(counts))
        numbers = pc.add(first.take(by_card), pa.array(range(1, len(order) + 1)))
        states.put("n", pc.add(before, counts))
        return {"id": events.column("id"), "card": events.column("card"), "n": numbers.take(pc.sort_indices(order))}
