"""The diff of a keyed operator: each frame is answered from the state that the serving version had before it.

The new version follows the owner (following.py). What it makes of the state itself lasts until the owner's next checkpoint, as
after an update: so each epoch tells what the new version would have made of it, and differences do not pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from udo_protocol.errors import Fenced
from udo_protocol.frame import ANSWER, DATA, END, ERROR, Frame, decode
from udo_protocol.schema import conform
from udo_runtime.comparing import Comparing
from udo_runtime.failure import ProcessingError
from udo_runtime.following import Follower
from udo_runtime.instance import Instance, Result
from udo_runtime.keyed_instance import KeyedInstance


class ComparingKeyed(Comparing, KeyedInstance):
    """See the module. `follower` is never given up: this instance is never promoted."""

    follower: Follower

    def _shadow(self) -> int:
        self.ledger.answered = True
        self._reader.pin(1, 60_000)  # before the state is read: what comes behind it must be there
        self._covered = self._restart(self.follower.load(), self.follower.sessions)
        self._next = self._covered + 1  # the first frame not yet processed
        self._told_of: deque[tuple[int, list[list[Any]]]] = deque()
        self.report({"ok": True})
        return super()._shadow()

    def _needed_from(self, cursor: int) -> int:
        self.follower.keep_lease()
        return self._covered + 1

    def _timed(self, rows: int, work: Callable[[], Result]) -> Result:
        return Instance._timed(self, rows, work)  # its own figures are what a diff shows

    def _look_at(self, seq: int, data: bytes | bytearray, served: dict[tuple[str, int], Frame]) -> None:
        self._reach(seq)
        new = self._processed(seq, data)
        frame = decode(data) if new is not None else None
        answer = served.get((frame.header.lane, frame.header.number)) if frame else None
        kinds = (ANSWER, ERROR)
        if (
            new is None
            or frame is None
            or answer is None
            or frame.header.kind not in (DATA, END)
            or answer.header.kind not in kinds
            or new.header.kind not in kinds
        ):
            self.found.not_compared += 1
        else:
            self._judge(frame, answer, new)

    def _judge(self, frame: Frame, answer: Frame, new: Frame) -> None:
        self.found.frames += 1
        self._versions[answer.header.version] += 1
        batch = conform(frame.batch(self._schema(frame.header.schema)), self._input) if frame.header.kind == DATA else None
        if new.header.kind == ERROR:
            failure = new.header.failure
            self._failed_on(frame, batch, answer, ProcessingError(failure.message, failure.traceback, failure.event, failure.code))
            return
        mine = new.batch(self._output)
        if answer.header.kind == ERROR:
            self.found.errors_served += 1
            self.found.different += 1
            self._differs(frame, batch, None, mine, 0, [], f"the serving version failed: {answer.header.failure.message}")
            return
        theirs = answer.batch(self._schema(answer.header.schema)) if answer.body is not None else mine.slice(0, 0)
        self._compare(frame, theirs if batch is None else batch, theirs, mine)

    def _processed(self, seq: int, data: bytes | bytearray) -> Frame | None:
        """The answer of this version; None for a frame that cannot be decoded."""
        self._next = seq + 1
        (lane, pieces), _ = self._keyed_answer(seq, data)
        return decode(b"".join(map(bytes, pieces))) if lane else None

    def _reach(self, seq: int) -> None:
        """Bring the state to what it was before frame `seq`."""
        self._told_of += self.follower.told()
        while self._told_of and self._told_of[0][0] < seq:
            self._covered, entries = self._told_of.popleft()
            self.follower.adopt(entries)
            self._restart(self._covered, self.follower.sessions)
            self._next = self._covered + 1
        while self._next < seq:
            self._reader.limits = self._limits
            read = self._reader.read(self._next)
            if read.first > self._next or not read.frames:
                raise Fenced(f"frames from {self._next} on are not in the log any more: the diff has lost its pin")
            for at, data in enumerate(read.frames[: seq - read.first], read.first):
                self._processed(at, data)
