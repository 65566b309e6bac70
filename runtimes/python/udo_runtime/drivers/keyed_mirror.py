"""Comparing a keyed operator: each frame is answered from the state that the serving version had before it.

The mirror follows the owner (durable/standby.py). Its own changes to the state last until the owner's next checkpoint, as
after an update: each epoch shows how the new version would have processed it, and differences do not accumulate. A diff compares
all events, a canary those of some key groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from udo_protocol.errors import Fenced, ProtocolError, StateLost
from udo_protocol.formats.schema import conform
from udo_protocol.queue.frame import ANSWER, DATA, END, ERROR, Frame, decode
from udo_protocol.state import changelog
from udo_runtime.drivers.keyed_owner import KeyedOwner
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.mirror import Served
from udo_runtime.drivers.perform import Performer
from udo_runtime.drivers.standby import Report, not_ready
from udo_runtime.durable.standby import ChangelogEntry, StandbyState
from udo_runtime.engine.comparison import Comparison
from udo_runtime.engine.effects import LoadSession, run
from udo_runtime.engine.keyed_engine import in_groups
from udo_runtime.execution.gathered import empty
from udo_runtime.failure import ProcessingError


class KeyedComparer:
    """The Comparer of a keyed operator. `renew` is called between frames that are processed to reach the one to compare."""

    def __init__(
        self,
        link: Link,
        owner: KeyedOwner,
        perform: Performer,
        state: StandbyState,
        comparison: Comparison,
        schemas: tuple[pa.Schema, pa.Schema],
    ) -> None:
        self._link, self._owner, self._perform, self._state, self._comparison = link, owner, perform, state, comparison
        self._engine = owner.engine
        self._input, self._output = schemas
        self._checkpoints: deque[ChangelogEntry] = deque()  # read, and not adopted yet
        self.renew: Callable[[int], None] = lambda cursor: None

    def load(self, report: Report) -> None:
        """Load the owner's state; then report that this instance is ready, or why it will not be."""
        self._perform.counting = self._engine.counting = False
        self._perform.on(LoadSession, lambda e: self._state.new(e.name))
        self._link.reader.pin(1, 60_000)  # before the state is read: later frames must still be in the log
        try:
            self._restart(self._state.load())
        except (ProcessingError, StateLost, Fenced) as e:
            raise not_ready(report, e) from e
        report({"ok": True})

    def _restart(self, covered: int) -> None:
        self._engine.restart(self._owner.start(self._state.sessions))
        self._covered, self._next = covered, covered + 1  # _next: the first frame not yet processed

    def needed_from(self, cursor: int) -> int:
        """See Comparer."""
        self._state.keep_lease()
        return self._covered + 1

    def compare(self, seq: int, data: bytes | bytearray, served: Served) -> bool:
        """See Comparer."""
        if not self._reach(seq):
            return False
        self._perform.counting = True
        new = self._answered(seq, data)
        self._perform.counting = False
        frame = decode(data)
        return self._compared(frame, served.get((frame.header.lane, frame.header.number)), new)

    def _compared(self, frame: Frame, answer: Frame | None, new: Frame) -> bool:
        """Compare and count the answers; False if they cannot be compared."""
        comparison, groups, failed = self._comparison, self._engine.groups, None
        if new.header.kind == ERROR:
            failure = new.header.failure
            failed = ProcessingError(failure.message, failure.traceback, failure.event, failure.code)
        if answer is None or frame.header.kind not in (DATA, END) or {answer.header.kind, new.header.kind} - {ANSWER, ERROR}:
            if failed:
                comparison.error(failed)
            return False
        try:
            events = frame.batch(self._perform.schema(frame.header.schema), text=False) if frame.header.kind == DATA else None
            served = self._served(answer)
        except ProtocolError:  # the serving version reports it to the sender
            return False
        theirs = served if answer.body is not None else None
        if groups is not None and not failed:  # comparable only if each event has one answer: else their groups are unknown
            if events is None or theirs is None or theirs.num_rows != events.num_rows:
                return False
            events, theirs = in_groups(events, events, groups), in_groups(theirs, events, groups)
            if not events.num_rows:
                return False
        comparison.frame(answer.header.version)
        batch = None
        with suppress(ProtocolError):  # the new version has failed on it
            batch = None if events is None else conform(events, self._input)
        if failed:
            comparison.new_failed(frame, batch, answer, served, failed)
            return True
        mine = new.batch(self._output)
        if answer.header.kind == ERROR:
            comparison.served_failed(frame, batch, answer, mine)
            return True
        theirs = mine.slice(0, 0) if theirs is None else theirs
        comparison.compare(frame, theirs if batch is None else batch, theirs, mine)
        return True

    def _served(self, answer: Frame) -> pa.RecordBatch | None:
        """The answer of the serving version; None if it failed."""
        if answer.header.kind == ERROR:
            return None
        return empty(self._output) if answer.body is None else answer.batch(self._perform.schema(answer.header.schema))

    def _answered(self, seq: int, data: bytes | bytearray) -> Frame:
        """The answer of this version. Fenced if the frame adopts key groups: their state is in no changelog."""
        self._next = seq + 1
        (_, pieces), _ = run(self._engine.frame(seq, data), self._perform)
        if self._engine.adopting:
            raise Fenced(changelog.gone(self._link.keys, self._link.name, changelog.GROUPS_MOVED))
        return decode(b"".join(map(bytes, pieces)))

    def _reach(self, seq: int) -> bool:
        """Bring the state to what it was before frame `seq`. False, until the next checkpoint, if it includes that frame already, or if
        earlier frames are gone."""
        self._checkpoints += self._state.read()
        if self._state.gone:
            raise Fenced(self._state.gone)
        while self._checkpoints and self._checkpoints[0].seq < seq:
            entry = self._checkpoints.popleft()
            self._state.adopt(entry)
            self._restart(entry.seq)
        while self._next < seq:
            self._link.reader.limits = self._link.limits
            read = self._link.reader.read(self._next)
            if read.first > self._next or not read.frames:
                return False
            for at, data in enumerate(read.frames[: seq - read.first], read.first):
                self._answered(at, data)
                self.renew(at)
        return self._next == seq
