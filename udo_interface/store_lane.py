"""A lane with a state store: before its events it restores the state that its key groups lack, after END it saves the epoch's changes.

The task's answers end only when the epoch's file is in its place, so Spark commits no epoch whose state is not in the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from udo_interface.lane import Collector, PendingFrame, Sender
from udo_interface.place import Place
from udo_interface.store import File, SessionStore, newest_at
from udo_protocol.errors import ProtocolError
from udo_protocol.queue import event_times, frame
from udo_protocol.queue.frame import Frame, Header
from udo_protocol.state.stored import ROWS, Row, body_bytes, row_bytes, rows

Answers = Iterator[tuple[PendingFrame, pa.RecordBatch]]


@dataclass
class StoreLane:
    """One keyed attempt and its store; `run` is the number of the query's plan."""

    store: SessionStore
    sender: Sender
    collector: Collector
    place: Place
    partitions: int
    run: int

    def __post_init__(self) -> None:
        assert self.sender.stamp is not None
        self._stamp = self.sender.stamp

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
        """Give the instance the state it lacks of this lane's groups. StateLost if the store lacks it too."""
        epoch, stamp = self._stamp.epoch, self._stamp
        if epoch == 0:
            return
        found = self._ask(frame.RESTORE, groups=stamp.groups).header
        if not (found.groups or found.behind):
            return
        if len(found.groups) != len(found.epochs):
            raise ProtocolError(f"{self.place} names {len(found.groups)} key groups and the epochs of {len(found.epochs)}")
        files = [f for f in self.store.files() if f.epoch < epoch]
        if not files and (stamp.start_empty or stamp.since == -1 or not found.groups):
            return
        lacking = [n for n, here in zip(found.groups, found.epochs, strict=True) if not _serves(files, n, here, epoch)]
        # With start_empty, go on from the state there is, whichever its epoch.
        since = max(f.epoch for f in files) if stamp.start_empty and files else stamp.since
        values, state_version = self.store.values(files, lacking, epoch, since)
        told = event_times.fields(self.store.highest(files, epoch))
        told["state_version"] = found.state_version if state_version is None else state_version
        for complete, batch in _parts(values, body_bytes(self.place.frame_bytes)):
            self._ask(frame.RESTORE, batch, groups=complete, **told)

    def save(self, *, void: bool = False) -> None:
        """Write the epoch's changes; or all state, every `full_every` epochs, or if the epoch before is missing or of another version."""
        epoch, groups = self._stamp.epoch, self._stamp.groups
        if not groups:
            return
        before = newest_at(self.store.files(epoch - 1), epoch - 1)
        full = epoch % self.store.stored.full_every == 0 or not before.keys() >= set(groups)
        batches, header = self._taken(full)
        if not full and any(before[n].state_version != header.state_version for n in groups):  # the operator was updated
            full = True
            batches, header = self._taken(full)
        place, stamp = self.place, self._stamp
        about = {
            "operator": place.operator,
            "version": header.version,
            "label": [stamp.run, epoch, stamp.attempt],
            **{"highest_us": None, **event_times.fields(event_times.told(header))},
        }
        file = File(
            epoch, place.partition, self.partitions, self.run, stamp.attempt, header.state_version, full, void, self.store.stored.key_groups
        )
        self.store.write(file, batches, about)
        if 0 in groups and (epoch - 2) % self.store.stored.full_every == 0:  # the full files of epoch - 2 are complete
            self.store.prune(epoch)

    def _taken(self, full: bool) -> tuple[list[pa.RecordBatch], Header]:
        """The epoch's changes in this lane's groups, or with `full` all their state, and the last answer's header."""
        batches, left, offset = [], list(self._stamp.groups), 0
        version = None
        while left:
            answer = self._ask(frame.STATE, groups=left, full=full, offset=offset)
            if version not in (None, answer.header.state_version):  # the operator was updated between two answers
                return self._taken(full)
            version = answer.header.state_version
            batches.append(self.collector.batch(answer, ROWS))
            taken, before, offset = len(answer.header.groups), offset, answer.header.offset
            if not taken and offset <= before:
                raise ProtocolError(f"{self.place}: the state of key group {left[0]} has no last part")
            left = left[taken:]
        return batches, answer.header

    def _ask(self, kind: frame.Kind, batch: pa.RecordBatch | None = None, **fields: object) -> Frame:
        """Make one round trip, with nothing else under way."""
        self.collector.due()
        self.sender.push_control(kind, batch, **fields)
        self.sender.settle()
        while not (frames := self.collector.frames()):
            pass
        self.collector.check(frames[0])
        return frames[0]


def _serves(files: list[File], group: int, here: int, epoch: int) -> bool:
    """Whether the instance's own state of the group, of epoch `here`, is as new as the store's, as a limit cut all later epochs short."""
    newest = max((f.epoch for f in files if group in f.groups and not f.void), default=-1)
    return here >= 0 and newest < epoch - 1 and here >= newest


def _parts(values: dict[int, dict[bytes, bytes]], bound: int) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Yield all rows in batches of at most `bound` bytes, each with the groups it completes; at least one batch, maybe without rows."""
    taken: list[Row] = []
    complete: list[int] = []
    size = 0
    for n, of_group in values.items():
        for key, value in of_group.items():
            if taken and size + row_bytes(key, value) > bound:
                yield complete, rows(taken)
                taken, complete, size = [], [], 0
            taken.append((n, key, value))
            size += row_bytes(key, value)
        complete.append(n)
    yield complete, rows(taken)
