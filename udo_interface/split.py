"""A keyed attempt over several slots: batches are split by key group, and their answers put together in the order of the rows.

Each slot has a lane of its own, and END goes to all of them with the highest event time of the whole partition, so that an epoch counts in
every slot or in none (docs/architecture.md, "Several slots"). Of an operator that does not answer one for each event the answers of a batch
come slot by slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from udo_interface.lane import LEAST_SHARE, SLOW_INPUT_S, Collector, PendingFrame, Sender
from udo_protocol.clock import Clock, SystemClock
from udo_protocol.formats.schema import GROUP_COLUMN

Rows = np.ndarray[Any, np.dtype[np.int64]]
Answered = Iterator[tuple[PendingFrame, pa.RecordBatch]]


@dataclass
class _Part:
    """A frame of one slot: these rows of its item."""

    item: _Item
    slot: int
    rows: Rows
    answer: pa.RecordBatch | None = None


@dataclass
class _Item:
    """A batch, or the ENDs; `sent` once all its parts are pushed."""

    kept: Any
    rows: int
    parts: list[_Part] = field(default_factory=list)
    sent: bool = False

    def awaited(self) -> int | None:
        """A slot whose answer is missing."""
        return next((part.slot for part in self.parts if part.answer is None), None)


class SplitExchange:
    """As `lane.exchange`, over one lane in each slot. `group_slots`: for each key group the place of its slot in `lanes`."""

    def __init__(
        self, lanes: Sequence[tuple[Sender, Collector]], group_slots: Sequence[int], window: int, clock: Clock | None = None
    ) -> None:
        self._lanes, self._slots, self._window = lanes, np.asarray(group_slots), window
        self._clock = clock or SystemClock()
        self._asked: deque[_Item] = deque()
        self._under_way: list[deque[_Part]] = [deque() for _ in lanes]
        self._collected = self._clock.monotonic()

    def run(self, items: Iterator[tuple[pa.RecordBatch, Any]], *, interleave: bool = False) -> Answered:
        """Answers to the batches of `items` = (batch, kept), in their order, then those of the ENDs."""
        monotonic = self._clock.monotonic
        try:
            while True:
                if interleave and self._asked and monotonic() - self._collected > SLOW_INPUT_S:
                    self._poll()
                    yield from self._complete()
                before = monotonic()
                if (item := next(items, None)) is None:
                    break
                slow = interleave and monotonic() - before > SLOW_INPUT_S
                self._send(*item)
                yield from self._complete()
                # Batches that are answered wait behind one that is not: no more of them than all slots may have under way.
                yield from self._drain(0 if slow else self._window * len(self._lanes))
            yield from self._end()
        except GeneratorExit:
            self._cut_short()
            raise

    def _send(self, batch: pa.RecordBatch, kept: Any) -> None:
        item = _Item(kept, batch.num_rows)
        self._asked.append(item)
        for slot, rows, events in self._split(batch):
            sender, collector = self._lanes[slot]
            under_way, at = self._under_way[slot], 0
            for count, pieces in sender.encode(events):
                if not under_way:
                    collector.due()
                sender.push(pieces)
                part = _Part(item, slot, rows[at : at + count])
                item.parts.append(part)
                under_way.append(part)
                at += count
                if len(under_way) >= min(self._window, LEAST_SHARE):
                    while len(under_way) >= sender.share(self._window):
                        self._wait(slot)
        item.sent = True

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Rows, pa.RecordBatch]]:
        """(slot, its rows, these events)."""
        groups = batch.column(GROUP_COLUMN).to_numpy(zero_copy_only=False)
        slots = self._slots[groups % len(self._slots)]
        for slot in np.unique(slots).tolist():
            rows = np.flatnonzero(slots == slot)
            yield slot, rows, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))

    def _wait(self, slot: int) -> None:
        sender, collector = self._lanes[slot]
        sender.settle()
        self._take(slot, collector.wait())

    def _poll(self) -> None:
        for slot, (sender, collector) in enumerate(self._lanes):
            if self._under_way[slot]:
                sender.settle()
                self._take(slot, collector.poll())

    def _take(self, slot: int, answers: list[pa.RecordBatch]) -> None:
        for answer in answers:
            self._under_way[slot].popleft().answer = answer
        self._collected = self._clock.monotonic()

    def _drain(self, left: int) -> Answered:
        """Wait until no more than `left` items are not answered."""
        while len(self._asked) > left:
            if (slot := self._asked[0].awaited()) is not None:
                self._wait(slot)
            yield from self._complete()

    def _complete(self) -> Answered:
        """The items at the front that are answered."""
        while self._asked and self._asked[0].sent and self._asked[0].awaited() is None:
            yield from _together(self._asked.popleft())

    def _end(self) -> Answered:
        if self._lanes[0][0].place.timed:
            yield from self._drain(0)
        seen = [c.highest_us for _, c in self._lanes if c.highest_us is not None]
        item = _Item(None, 0, sent=True)
        for slot, (sender, collector) in enumerate(self._lanes):
            if not self._under_way[slot]:
                collector.due()
            sender.push_end(highest_us=max(seen, default=None))
            part = _Part(item, slot, np.arange(0))
            item.parts.append(part)
            self._under_way[slot].append(part)
        self._asked.append(item)
        yield from self._drain(0)

    def _cut_short(self) -> None:
        """Spark wants no more answers: the epoch is complete in every slot, and this attempt's events leave no trace in the state."""
        for sender, _ in self._lanes:
            sender.push_end(void=True)
        for sender, collector in self._lanes:
            sender.settle()
            while collector.number < sender.number:
                collector.wait()


def _together(item: _Item) -> Answered:
    """The answers of an item as one batch in the order of its rows; or of each part by itself, if they are not one for each row."""
    answers = [part.answer for part in item.parts if part.answer is not None]
    if all(answer.num_rows == len(part.rows) for part, answer in zip(item.parts, answers, strict=True)):
        whole = answers[0]
        if len(answers) > 1:
            order = pa.array(np.argsort(np.concatenate([part.rows for part in item.parts])))
            joined = pa.Table.from_batches(answers).take(order).combine_chunks()
            whole = next(iter(joined.to_batches()), answers[0])
        yield PendingFrame(item.kept, 0, item.rows), whole
        return
    for part, answer in zip(item.parts, answers, strict=True):
        yield PendingFrame(_taken(item.kept, part.rows), 0, len(part.rows)), answer


def _taken(kept: Any, rows: Rows) -> Any:
    """Of what was kept with an item, that of these rows: a batch's, or of columns that are lists."""
    if kept is None:
        return None
    if isinstance(kept, pa.RecordBatch):
        return kept.take(pa.array(rows))
    return [[column[row] for row in rows] for column in kept]
