"""A keyed attempt over several slots: batches are split by key group, and their answers put together in the order of the rows.

Each slot has a lane of its own, and END goes to all of them with the highest event times of the whole partition, so that an epoch counts in
every slot or in none (docs/design/slots.md). If an operator does not give one answer per event, the answers of a batch
come slot by slot.

Key groups may move between slots meanwhile. A slot that has lost some refuses the first frame that was split by the older map; that
frame's rows are split again by the newer map and sent before anything else, so that no event of a key overtakes an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from udo_interface.lane.lane import Collector, Rerouted, Sender
from udo_interface.lane.split_parts import Answered, Ends, Item, Part, Rows, chosen, together
from udo_protocol.clock import Clock, SystemClock
from udo_protocol.errors import ProtocolError
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import LEAST_SHARE
from udo_protocol.queue import frame
from udo_protocol.queue.event_times import combined
from udo_protocol.queue.frame import Frame
from udo_protocol.queue.route import Route

# If an input batch takes longer to arrive than a round trip, the source sets the pace, not the operator.
SLOW_INPUT_S = 0.002
# Opens a lane in the slot of this name in a group map, which the deployment did not have before.
OpenLane = Callable[[str], tuple[Sender, Collector]]


class SplitExchange:
    """As `lane.exchange`, over one lane in each slot. `group_slots`: for each key group the index of its slot in `lanes`.

    `open_lane` is called when groups move to a slot that has no lane yet.
    """

    def __init__(
        self,
        lanes: list[tuple[Sender, Collector]],
        group_slots: Sequence[int],
        window: int,
        clock: Clock | None = None,
        open_lane: OpenLane | None = None,
    ) -> None:
        self._lanes, self._slots, self._window = lanes, np.asarray(group_slots), window
        self._clock = clock or SystemClock()
        self._open_lane = open_lane
        self._asked: deque[Item] = deque()
        self._under_way: list[deque[Part]] = []
        self._collected = self._clock.monotonic()
        self._map_version = 0  # of the newest group map that a slot has sent
        self._rerouted = 0  # how often refused frames were sent again
        self._ends: Ends | None = None
        self._groups = [g for sender, _ in lanes if sender.stamp for g in sender.stamp.groups]  # that this attempt answers for
        for sender, _ in lanes:
            self._use(sender)

    def _use(self, sender: Sender) -> None:
        sender.splits = True
        self._under_way.append(deque())

    def run(self, items: Iterator[tuple[pa.RecordBatch, Any]], *, interleave: bool = False) -> Answered:
        """Answers to the batches of `items` = (batch, kept), in their order, then those of the ENDs.

        With `interleave` answers are collected every SLOW_INPUT_S, and all are awaited after an input that was slower than that.
        """
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
                if self._completed():
                    yield from self._complete()
                # Answered batches wait behind an unanswered one: bound them by the frames that all slots may have under way.
                if slow or len(self._asked) > self._window * len(self._lanes):
                    yield from self._drain(0 if slow else self._window * len(self._lanes))
            yield from self._end()
        except GeneratorExit:
            self._cut_short()
            raise

    def _send(self, batch: pa.RecordBatch, kept: Any) -> None:
        item = Item(kept, batch.num_rows)
        self._asked.append(item)
        self._push_rows(item, range(batch.num_rows), batch)
        item.sent = True

    def _push_rows(self, item: Item, rows: Rows, events: pa.RecordBatch) -> None:
        """Send these rows of an item. When groups move meanwhile, the rows not yet sent are split again."""
        left = deque([(rows, events)])
        while left:
            rows, events = left.popleft()
            rerouted, parts = self._rerouted, deque(self._split(events))
            while parts:
                slot, at, some = parts.popleft()
                wanted = chosen(rows, at)
                pushed = self._push_frames(item, slot, wanted, some)
                if self._rerouted != rerouted:
                    left.append((wanted[pushed:], some.slice(pushed)))
                    left += [(chosen(rows, later), others) for _, later, others in parts]
                    break

    def _push_frames(self, item: Item, slot: int, rows: Rows, events: pa.RecordBatch) -> int:
        """Send events to one slot; return how many were sent: not all if groups moved, since the rest may belong to another slot."""
        sender, collector = self._lanes[slot]
        under_way, at, rerouted = self._under_way[slot], 0, self._rerouted
        for count, pieces in sender.encode(events):
            self._settle(slot)
            if self._rerouted != rerouted:
                return at
            if not under_way:
                collector.due()
            sender.push(pieces)
            whole = count == events.num_rows
            part = Part(item, slot, rows if whole else rows[at : at + count], None, events if whole else events.slice(at, count))
            item.parts.append(part)
            under_way.append(part)
            at += count
            if len(under_way) >= min(self._window, LEAST_SHARE):
                while len(under_way) >= self._share(slot):
                    self._wait(slot)
            if self._rerouted != rerouted:
                return at
        return at

    def _share(self, slot: int) -> int:
        """How many frames may be under way in the slot."""
        try:
            return self._lanes[slot][0].share(self._window)
        except Rerouted as e:
            self._reroute(slot, e.route)
            return self._window

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Rows | slice, pa.RecordBatch]]:
        """Yield (slot, the positions of its rows, their events)."""
        if len(self._lanes) == 1 and batch.num_rows:
            yield 0, slice(None), batch
            return
        groups = batch.column(GROUP_COLUMN).to_numpy(zero_copy_only=False)
        slots = self._slots[groups % len(self._slots)]
        for slot in np.unique(slots).tolist():
            rows = np.flatnonzero(slots == slot)
            yield (slot, slice(None), batch) if len(rows) == batch.num_rows else (slot, rows, batch.take(pa.array(rows)))

    # -- groups that move --------------------------------------------------------------------------------------------

    def _settle(self, slot: int) -> None:
        """Read the outcome of the slot's last push; if it was refused, reroute its rows and read again."""
        while True:
            try:
                self._lanes[slot][0].settle()
                break
            except Rerouted as e:
                self._reroute(slot, e.route)
        if self._under_way[slot]:
            self._under_way[slot][-1].events = None

    def _settle_all(self) -> None:
        """Settle all slots, until no frame is left that a slot may still refuse."""
        rerouted = -1
        while rerouted != self._rerouted:
            rerouted = self._rerouted
            for slot in range(len(self._lanes)):
                self._settle(slot)

    def _reroute(self, slot: int, route: Route) -> None:
        """Send the rows or groups of the slot's last frame, which it refused since groups have moved, by the newer map.

        Before anything is sent by the newer map, every frame sent by the older one is known to be accepted or refused: else a later
        event of a key could go to the new slot before the former slot refuses an earlier one.
        """
        refused = [self._refused(slot, route)]
        for other in range(len(self._lanes)):
            try:
                self._lanes[other][0].settle()
            except Rerouted as e:
                refused.append(self._refused(other, e.route))
        self._rerouted += 1
        for part in refused:
            if part.events is not None:
                self._push_rows(part.item, part.rows, part.events)
        for part in refused:
            if self._ends is not None and part.ends is not None:
                self._ends.groups += part.ends
                self._ends.slots.append(part.slot)
        if self._ends is not None:
            self._push_ends(self._ends)

    def _refused(self, slot: int, route: Route) -> Part:
        """Take back the part that the slot has refused; its frame number is free again."""
        self._follow(route)
        refused = self._under_way[slot].pop()
        # By identity: `==` would compare the arrays of the parts.
        refused.item.parts = [part for part in refused.item.parts if part is not refused]
        return refused

    def _follow(self, route: Route) -> None:
        """Take a newer group map; a slot without a lane is given one."""
        if not route.groups:
            raise ProtocolError(f"{self._lanes[0][0].place}: its slots have a newer route {route.version}, without a group map")
        if route.map_version <= self._map_version:
            return
        known = {sender.slot: at for at, (sender, _) in enumerate(self._lanes)}
        for slot in route.slots:
            if slot not in known:
                if self._open_lane is None:
                    raise ProtocolError(f"{self._lanes[0][0].place}: key groups have moved to {slot}, where this attempt has no lane")
                lane = self._open_lane(slot)
                known[slot] = len(self._lanes)
                if self._ends is not None:
                    self._ends.slots.append(len(self._lanes))
                self._lanes.append(lane)
                self._use(lane[0])
        places = [known[slot] for slot in route.slots]
        self._slots, self._map_version = np.asarray([places[at] for at in route.groups]), route.map_version
        for place, version in zip(places, route.versions, strict=True):
            self._lanes[place][0].go_by(version)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _wait(self, slot: int) -> None:
        self._settle(slot)
        if self._under_way[slot]:
            self._take(slot, self._lanes[slot][1].wait())

    def _poll(self) -> None:
        for slot in range(len(self._lanes)):
            if self._under_way[slot]:
                self._settle(slot)
            if self._under_way[slot]:
                self._take(slot, self._lanes[slot][1].poll())

    def _take(self, slot: int, answers: list[pa.RecordBatch]) -> None:
        for answer in answers:
            part = self._under_way[slot].popleft()
            part.answer = answer
            part.item.answered += 1
        self._collected = self._clock.monotonic()

    def _drain(self, left: int) -> Answered:
        """Wait until at most `left` items are unanswered."""
        while len(self._asked) > left:
            if (slot := self._asked[0].awaited()) is not None:
                self._wait(slot)
            yield from self._complete()

    def _completed(self) -> bool:
        """Whether the item at the front is answered."""
        return bool(self._asked) and (item := self._asked[0]).sent and item.answered == len(item.parts)

    def _complete(self) -> Answered:
        """Yield the answers of the answered items at the front."""
        while self._completed():
            yield from together(self._asked.popleft())

    # -- control frames, with nothing else under way -----------------------------------------------------------------

    @property
    def groups(self) -> list[int]:
        """The key groups that this attempt answers for."""
        return list(self._groups)

    @property
    def slots(self) -> range:
        """The slots in which the attempt has a lane, each of which gets its END; some may have no groups."""
        return range(len(self._lanes))

    def placed(self, groups: Iterable[int]) -> dict[int, list[int]]:
        """These groups by slot, as the newest map says."""
        found: dict[int, list[int]] = {}
        for g in groups:
            found.setdefault(self._place(g), []).append(g)
        return found

    def ask(self, slot: int, kind: frame.Kind, batch: pa.RecordBatch | None = None, **fields: object) -> Frame | None:
        """The answer to a control frame. None if groups have moved, so that the slot refuses it: from here on the newer map is in use."""
        sender, collector = self._lanes[slot]
        collector.due()
        try:
            sender.push_control(kind, batch, **fields)
            sender.settle()
        except Rerouted as e:
            self._follow(e.route)
            return None
        while not (frames := collector.frames()):
            pass
        collector.check(frames[0])
        return frames[0]

    def rows(self, slot: int, answer: Frame, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of an answer of that slot, in that schema."""
        return self._lanes[slot][1].batch(answer, schema)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> Answered:
        if self._lanes[0][0].place.timed:
            yield from self._drain(0)
        self._settle_all()
        seen = combined(collector.highest for _, collector in self._lanes)
        self._ends = ends = Ends(self._groups, len(self._lanes), void=False, highest=seen)
        self._asked.append(ends.item)
        self._push_ends(ends)
        ends.item.sent = True
        yield from self._drain(0)

    def _push_ends(self, ends: Ends) -> None:
        """Send END to each slot that has not had one, and to the slots of groups that no END has named."""
        while ends.slots or ends.groups:
            slot = ends.slots.pop(0) if ends.slots else self._place(ends.groups[0])
            self._settle(slot)
            groups = [g for g in ends.groups if self._place(g) == slot]
            ends.groups = [g for g in ends.groups if self._place(g) != slot]
            sender, collector = self._lanes[slot]
            if not self._under_way[slot]:
                collector.due()
            sender.push_end(void=ends.void, highest=ends.highest, groups=groups)
            part = Part(ends.item, slot, range(0), ends=groups)
            ends.item.parts.append(part)
            self._under_way[slot].append(part)

    def _place(self, group: int) -> int:
        return int(self._slots[group % len(self._slots)])

    def _cut_short(self) -> None:
        """End the attempt void in every slot, since Spark wants no more answers: the epoch is complete, without a trace of the attempt."""
        self._settle_all()
        self._ends = Ends(self._groups, len(self._lanes), void=True, highest={})
        self._push_ends(self._ends)
        # An END that a slot refuses, since groups have moved, goes to another one, which may have answered its own by then.
        while (slot := next((at for at, parts in enumerate(self._under_way) if parts), None)) is not None:
            self._wait(slot)
