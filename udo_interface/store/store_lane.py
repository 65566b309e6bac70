"""An attempt with a state store: before its events it restores the state that its key groups lack; after END it saves the epoch's changes.

The task's answers end only when the epoch's file is in its place, so Spark commits no epoch whose state is not in the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from udo_interface.lane.lane import PendingFrame
from udo_interface.lane.place import Place, Stamp
from udo_interface.lane.split import SplitExchange
from udo_interface.store.store import File, SessionStore, newest_at
from udo_protocol.errors import ProtocolError, Unavailable
from udo_protocol.queue import event_times, frame
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.event_times import EventTimes
from udo_protocol.state.stored import ROWS, Rows, Values, body_bytes, bytes_of, fitting

# The slots of a deployment are updated one right after the other: ask again after 5, 10 ... 500 ms. A slot that stays behind for longer
# than a standby may take to load is reported.
AGAIN_INCREMENT_US, AGAIN_CEILING_US = 5_000, 500_000
ONE_VERSION_S = 60.0
Answers = Iterator[tuple[PendingFrame, pa.RecordBatch]]


@dataclass
class Lacking:
    """`epochs`: for each group without the state that the epoch needs, the epoch of the state it has (-1: none). `behind`: event times
    may be missing. `state_version`: the operator's."""

    epochs: dict[int, int] = field(default_factory=dict)
    behind: bool = False
    state_version: int = 0


@dataclass
class Taken:
    """Rows of the attempt's groups; the operator's version and that of its state; the highest event times."""

    batches: list[pa.RecordBatch]
    version: str
    state_version: int
    highest: EventTimes = field(default_factory=dict)


@dataclass
class StoreLane:
    """One keyed attempt, over one slot or several, and its store; `run` is the number of the query's plan."""

    store: SessionStore
    split: SplitExchange
    place: Place
    stamp: Stamp
    partitions: int
    run: int

    def around(self, answers: Answers) -> Answers:
        """Yield the attempt's answers, between restoring and saving."""
        self.restore()
        try:
            yield from answers
        except GeneratorExit:  # a limit: the store must know, too, that the attempt has ENDed without a trace
            self.save(void=True)
            raise
        self.save()

    def restore(self) -> None:
        """Give the instances the state that they lack of this attempt's groups. StateLost if the store lacks it too."""
        while not self._restored():  # key groups have moved: what was restored completely by then is no longer missing
            pass

    def _restored(self) -> bool:
        epoch, stamp = self.stamp.epoch, self.stamp
        if epoch == 0:
            return True
        found = self._lacking()
        if found is None:
            return False
        if not (found.epochs or found.behind):
            return True
        files = [f for f in self.store.files() if f.epoch < epoch]
        if not files and (stamp.start_empty or stamp.since == -1 or not found.epochs):
            return True
        lacking = [n for n, here in found.epochs.items() if not _serves(files, n, here, epoch)]
        # With start_empty, continue from the state that exists, whatever its epoch.
        since = max(f.epoch for f in files) if stamp.start_empty and files else stamp.since
        values, versions = self.store.values(files, lacking, epoch, since)
        told = event_times.fields(self.store.highest(files, epoch))
        here = self.split.placed(values)
        for slot in self._slots() if found.behind else here:  # every slot has the event times of all
            of_slot = here.get(slot, [])
            for version in sorted({versions[n] for n in of_slot}) or [found.state_version]:
                of_version = {n: values[n] for n in of_slot if versions[n] == version}
                for complete, batch in parts(of_version, body_bytes(self.place.frame_bytes)):
                    if self.split.ask(slot, frame.RESTORE, batch, groups=complete, state_version=version, **told) is None:
                        return False
        return True

    def _slots(self) -> dict[int, list[int]]:
        """All slots with the key groups that they have: a slot without any follows the epochs, too."""
        placed = self.split.placed(range(self.store.stored.key_groups))
        return {slot: placed.get(slot, []) for slot in self.split.slots}

    def _lacking(self) -> Lacking | None:
        """The missing state; None if key groups have moved meanwhile."""
        mine, slots = set(self.split.groups), self._slots()
        found, runs = Lacking(), set[int]()
        for slot, groups in slots.items():
            asked = groups if len(slots) > 1 else self.split.groups
            answer = self.split.ask(slot, frame.RESTORE, groups=asked, full=len(slots) > 1)
            if answer is None:
                return None
            header = answer.header
            if len(header.groups) != len(header.epochs):
                raise ProtocolError(f"{self.place} names {len(header.groups)} key groups and the epochs of {len(header.epochs)}")
            found.epochs |= {n: here for n, here in zip(header.groups, header.epochs, strict=True) if n in mine}
            found.behind |= header.behind
            found.state_version = header.state_version
            runs |= {header.run_before} - {0}
        found.behind |= len(runs) > 1
        return found

    def save(self, *, void: bool = False) -> None:
        """Write the epoch's changes; or all state, every `full_every` epochs, or if the epoch before is missing or of another version."""
        epoch, groups = self.stamp.epoch, self.split.groups
        if not groups:
            return
        before = newest_at(self.store.files(epoch - 1), epoch - 1)
        full = epoch % self.store.stored.full_every == 0 or not before.keys() >= set(groups)
        taken = self._taken(full)
        if not full and any(before[n].state_version != taken.state_version for n in groups):  # the operator was updated
            full = True
            taken = self._taken(full)
        place, stamp, stored = self.place, self.stamp, self.store.stored
        about = {
            "operator": place.operator,
            "version": taken.version,
            "label": [stamp.run, epoch, stamp.attempt],
            **{"highest_us": None, **event_times.fields(taken.highest)},
        }
        file = File(epoch, place.partition, self.partitions, self.run, stamp.attempt, taken.state_version, full, void, stored.key_groups)
        self.store.write(file, taken.batches, about)
        if 0 in groups and (epoch - 2) % stored.full_every == 0:  # the full files of epoch - 2 are complete
            self.store.prune(epoch)

    def _taken(self, full: bool) -> Taken:
        """The epoch's changes in this attempt's groups, or with `full` all their state, in one state version: asks again if the operator
        was updated, or key groups moved, between two answers."""
        backoff = LinearBackoff(AGAIN_INCREMENT_US, AGAIN_CEILING_US)
        deadline = time.monotonic() + ONE_VERSION_S
        while (taken := self._taken_at_once(full)) is None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{self.place}: the slots of this deployment have answered in several state versions for {ONE_VERSION_S:g} s, and the "
                    "store keeps an epoch in one: an update is under way that does not get further (udo status)"
                )
            backoff.pause()
        return taken

    def _taken_at_once(self, full: bool) -> Taken | None:
        taken: Taken | None = None
        for slot, left in self.split.placed(self.split.groups).items():
            offset = 0
            while left:
                answer = self.split.ask(slot, frame.STATE, groups=left, full=full, offset=offset)
                if answer is None or (taken is not None and taken.state_version != answer.header.state_version):
                    return None
                header = answer.header
                taken = taken or Taken([], header.version, header.state_version)
                taken.batches.append(self.split.rows(slot, answer, ROWS))
                taken.highest = event_times.combined((taken.highest, event_times.told(header)))
                count, before, offset = len(header.groups), offset, header.offset
                if not count and offset <= before:
                    raise ProtocolError(f"{self.place}: the state of key group {left[0]} has no last part")
                left = left[count:]
        return taken


def _serves(files: list[File], group: int, here: int, epoch: int) -> bool:
    """Whether the instance's own state of the group, of epoch `here`, is as new as the store's: a limit cut all later epochs short."""
    newest = max((f.epoch for f in files if group in f.groups and not f.void), default=-1)
    return here >= 0 and newest < epoch - 1 and here >= newest


def parts(values: dict[int, dict[bytes, bytes]], bound: int) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Yield all rows in batches of at most `bound` bytes, each with the groups it completes; at least one batch, maybe without rows."""
    taken, complete = Rows(), list[int]()
    for n, of_group in values.items():
        left: Values = of_group
        if taken and taken.size + bytes_of(left) > bound:
            yield complete, taken.batch()
            taken, complete = Rows(), []
        while len(part := fitting(left, bound)) < len(left):
            taken.add(n, part)
            yield complete, taken.batch()
            taken, complete = Rows(), []
            left = dict(islice(left.items(), len(part), None))
        taken.add(n, left)
        complete.append(n)
    yield complete, taken.batch()
