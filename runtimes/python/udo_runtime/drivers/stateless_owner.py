"""The owner of a stateless slot.

Answers are sent without waiting for their outcome: the server decides on the fence together with the write, so the
next frame is processed in the meantime, and a fenced instance learns of it before it could do harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.slot_reader import Emit, Read
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.perform import Performer
from udo_runtime.durable.letters import StatelessLetters
from udo_runtime.engine.effects import Answer, KeepLetters, LetterRoom, run
from udo_runtime.engine.replies import Replies
from udo_runtime.engine.stateless_engine import StatelessEngine

# Answers of at least this size are sent at once; smaller ones travel together.
_GROUP_BYTES = 64 << 10


class StatelessOwner:
    """The driver of an owner's engine. `letters`: the store of bad events under the policy `dead-letter`."""

    def __init__(self, link: Link, engine: StatelessEngine, perform: Performer, replies: Replies, letters: StatelessLetters | None) -> None:
        self._link, self._engine, self._perform, self._letters = link, engine, perform, letters
        self._unconfirmed = False
        perform.settle = self.settle
        if letters is not None:
            perform.on(LetterRoom, lambda _: letters.room.events())
            perform.on(KeepLetters, lambda e: letters.keep(e.seq, e.header, e.found, replies.reference, replies.instance))

    def begin(self, read: Read) -> int:
        """Begin after a promotion; returns the frame to continue from."""
        if self._letters is not None:
            self._letters.begin(read.emitted)
        return read.emitted + 1

    def expected_base(self, cursor: int) -> int | None:
        """The cursor: answered frames are trimmed in the same step, so the log begins there."""
        return cursor

    def answer(self, seq: int, frames: Sequence[bytes | bytearray]) -> int:
        """Answer each of these frames."""
        waiting: list[Answer] = []
        size = 0
        for data in frames:
            answer = run(self._engine.frame(seq + len(waiting), data), self._perform)
            waiting.append(answer)
            size += sum(map(len, answer[1]))
            if size >= _GROUP_BYTES:
                self._send(seq, waiting)
                seq, waiting, size = seq + len(waiting), [], 0
        if waiting:
            self._send(seq, waiting, hold=True)  # the next read follows at once
        return seq + len(waiting)

    def _send(self, seq: int, answers: list[Answer], *, hold: bool = False) -> None:
        self.settle()
        self._link.reader.send_emit(seq, answers, hold=hold)
        self._link.counters.bytes_out += sum(len(part) for _, frame in answers for part in frame)
        self._unconfirmed = True

    def settle(self) -> None:
        """Receive the outcome of the last answers."""
        if self._unconfirmed:
            self._unconfirmed = False
            if (outcome := self._link.reader.emit_reply()) is not Emit.EMITTED:
                raise ProtocolError(f"instance {self._link.name} answered out of turn: {outcome}")
