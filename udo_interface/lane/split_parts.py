"""Items under way in a split attempt: batches, the parts of them that went to each slot, and their answers put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from udo_interface.lane.lane import PendingFrame
from udo_protocol.queue.event_times import EventTimes

# Rows of a batch: consecutive ones as a range, which costs nothing with a single slot.
Rows: TypeAlias = "range | np.ndarray[Any, np.dtype[np.int64]]"
Answered = Iterator[tuple[PendingFrame, pa.RecordBatch]]


@dataclass(slots=True)
class Part:
    """A frame for one slot: `rows` of its item, or END for the key groups `ends`. `events` stays until the slot has accepted the frame."""

    item: Item
    slot: int
    rows: Rows
    answer: pa.RecordBatch | None = None
    events: pa.RecordBatch | None = None
    ends: Sequence[int] | None = None


@dataclass(slots=True)
class Item:
    """A batch, or the ENDs; `sent` once all its parts are pushed. `answered`: how many parts are answered."""

    kept: Any
    rows: int
    parts: list[Part] = field(default_factory=list)
    sent: bool = False
    answered: int = 0

    def awaited(self) -> int | None:
        """A slot whose answer is missing; None if there is none."""
        return next((part.slot for part in self.parts if part.answer is None), None)


class Ends:
    """The ENDs of an attempt: the `groups` that no END sent so far names, and the `slots` that no END was sent to."""

    def __init__(self, groups: Sequence[int], slots: int, void: bool, highest: EventTimes) -> None:
        self.item = Item(None, 0)
        self.groups, self.slots = list(groups), list(range(slots))
        self.void, self.highest = void, highest


def chosen(rows: Rows, at: Rows | slice) -> Rows:
    """The rows at these positions within `rows`."""
    return rows[at] if isinstance(at, slice) else np.asarray(rows)[np.asarray(at)]


def together(item: Item) -> Answered:
    """Yield an item's answers in the order of its rows; part by part, if there is not one answer per row."""
    parts = item.parts
    if len(parts) == 1 and parts[0].answer is not None:
        yield PendingFrame(item.kept, 0, item.rows), parts[0].answer
        return
    answers = [part.answer for part in parts if part.answer is not None]
    if all(not len(part.rows) or before.rows[-1] < part.rows[0] for before, part in pairwise(parts)):
        at = 0
        for part, answer in zip(parts, answers, strict=True):
            yield PendingFrame(item.kept, at, len(part.rows)), answer
            at += len(part.rows)
    elif all(answer.num_rows == len(part.rows) for part, answer in zip(parts, answers, strict=True)):
        order = pa.array(np.argsort(np.concatenate([part.rows for part in parts])))
        (whole,) = pa.Table.from_batches(answers).take(order).combine_chunks().to_batches()
        yield PendingFrame(item.kept, 0, item.rows), whole
    else:
        for part, answer in zip(parts, answers, strict=True):
            yield PendingFrame(_taken(item.kept, part.rows), 0, len(part.rows)), answer


def _taken(kept: Any, rows: Rows) -> Any:
    """The part of an item's `kept` for these rows; `kept` is a batch, or columns as lists."""
    if kept is None:
        return None
    if isinstance(kept, pa.RecordBatch):
        return kept.take(pa.array(np.asarray(rows)))
    return [[column[row] for row in rows] for column in kept]
