"""Comparing for keyed operators: each frame is answered from the state that the serving version had before it.

The new version follows the owner (following.py). What it makes of the state itself lasts until the owner's next checkpoint, as
after an update: so each epoch tells what the new version would have made of it, and differences do not pile up. A diff does
so with all events, a canary with those of some key groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import Fenced, ProtocolError, StateLost
from udo_protocol.frame import ANSWER, DATA, END, ERROR, Frame, Header, decode
from udo_protocol.schema import GROUP_COLUMN, conform
from udo_runtime.bad_events import empty
from udo_runtime.comparing import Comparing
from udo_runtime.failure import ProcessingError
from udo_runtime.following import Follower
from udo_runtime.instance import Instance, Result
from udo_runtime.keyed_instance import KeyedInstance
from udo_runtime.session import Session


class ComparingKeyed(Comparing, KeyedInstance):
    """See the module. `follower` is never given up: this instance is never promoted. `groups`: those tried, None for all."""

    follower: Follower
    groups: Collection[int] | None = None
    _counting = False  # else it processes what came before the frames that it looks at

    def _shadow(self) -> int:
        self.ledger.answered = True
        self._reader.pin(1, 60_000)  # before the state is read: what comes behind it must be there
        try:
            self._covered = self._restart(self.follower.load(), self.follower.sessions)
        except (ProcessingError, StateLost) as e:
            raise self._unreadable(e) from e
        self._next = self._covered + 1  # the first frame not yet processed
        self._told_of: deque[tuple[int, list[list[Any]]]] = deque()
        self.report({"ok": True})
        return super()._shadow()

    def _needed_from(self, cursor: int) -> int:
        self.follower.keep_lease()
        return self._covered + 1

    def _timed(self, rows: int, work: Callable[[], Result]) -> Result:
        return Instance._timed(self, rows, work) if self._counting else work()

    # -- the part that is tried --------------------------------------------------------------------------------------

    def _processed(self, session: Session, header: Header, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        batch = self._tried(batch, batch)
        return super()._processed(session, header, batch) if batch.num_rows else empty(self._output)

    def _end(self, session: Session, header: Header) -> pa.RecordBatch | None:
        if self.groups is None:
            return super()._end(session, header)
        mine = Header()
        mine.CopyFrom(header)
        mine.groups[:] = [n for n in header.groups if n in self.groups]
        return super()._end(session, mine)

    def _tried(self, rows: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
        """Of `rows`, one for each of `events`, those in the key groups that are tried."""
        if self.groups is None:
            return rows
        numbers = events.column(GROUP_COLUMN)
        return rows.filter(pc.is_in(numbers, value_set=pa.array(self.groups, numbers.type)))

    # -- comparing ---------------------------------------------------------------------------------------------------

    def _look_at(self, seq: int, data: bytes | bytearray, served: dict[tuple[str, int], Frame]) -> None:
        if not self._reach(seq):
            self.found.not_compared += 1
            return
        self._counting = True
        new = self._answered(seq, data)
        self._counting = False
        frame = decode(data) if new is not None else None
        answer = served.get((frame.header.lane, frame.header.number)) if frame else None
        if new is None or frame is None or not self._judge(frame, answer, new):
            self.found.not_compared += 1

    def _judge(self, frame: Frame, answer: Frame | None, new: Frame) -> bool:
        """Compare and count; False if these cannot be compared."""
        failed = None
        if new.header.kind == ERROR:
            failure = new.header.failure
            failed = ProcessingError(failure.message, failure.traceback, failure.event, failure.code)
        if answer is None or frame.header.kind not in (DATA, END) or {answer.header.kind, new.header.kind} - {ANSWER, ERROR}:
            if failed:
                self._note_error(failed)
            return False
        try:
            events = self._batch(frame) if frame.header.kind == DATA else None
            theirs = self._served(answer) if answer.body is not None else None
        except ProtocolError:  # whoever sent it is told so by the serving version
            return False
        if self.groups is not None and not failed:  # comparable where each event has one answer: whose the others are, nobody knows
            if events is None or theirs is None or theirs.num_rows != events.num_rows:
                return False
            events, theirs = self._tried(events, events), self._tried(theirs, events)
            if not events.num_rows:
                return False
        self.found.frames += 1
        self._versions[answer.header.version] += 1
        batch = None if events is None else conform(events, self._input)
        if failed:
            served = None if answer.header.kind == ERROR else empty(self._output) if theirs is None else theirs
            self._failed_on(frame, batch, served, failed)
            return True
        mine = new.batch(self._output)
        if answer.header.kind == ERROR:
            self.found.errors_served += 1
            self.found.different += 1
            self._differs(frame, batch, None, mine, 0, [], f"the serving version failed: {answer.header.failure.message}")
            return True
        theirs = mine.slice(0, 0) if theirs is None else theirs
        self._compare(frame, theirs if batch is None else batch, theirs, mine)
        return True

    def _answered(self, seq: int, data: bytes | bytearray) -> Frame | None:
        """The answer of this version; None for a frame that cannot be decoded."""
        self._next = seq + 1
        (lane, pieces), _ = self._keyed_answer(seq, data)
        return decode(b"".join(map(bytes, pieces))) if lane else None

    def _reach(self, seq: int) -> bool:
        """Bring the state to what it was before frame `seq`; False if it holds that frame, or frames before it are gone: until the next
        checkpoint."""
        self._told_of += self.follower.told()
        if not self.follower.follows:
            raise Fenced(f"{self._reader.name} was not told of all checkpoints: another instance follows, or the owner went back")
        while self._told_of and self._told_of[0][0] < seq:
            self._covered, entries = self._told_of.popleft()
            self.follower.adopt(entries)
            self._restart(self._covered, self.follower.sessions)
            self._next = self._covered + 1
        while self._next < seq:
            self._reader.limits = self._limits
            read = self._reader.read(self._next)
            if read.first > self._next or not read.frames:
                return False
            for at, data in enumerate(read.frames[: seq - read.first], read.first):
                self._answered(at, data)
                self._renew(at)
        return self._next == seq
