"""Key groups that leave a slot or come to it: what a frame of the node manager asks of its engine, and what the engine takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.frame import HANDOVER, PREPARE, Header
from udo_runtime.engine.effects import Answer, FindTold, HandOver, LoadAdopted, LoadSession, Prepare, Steps, TakeIn, Trim
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.state.adopted import Adopted
from udo_runtime.state.session import Session

if TYPE_CHECKING:
    from udo_runtime.engine.keyed import Engine


class GroupMoves:
    """One engine's part in moves. `taking`: adopted in memory; the engine's next checkpoint makes it part of the state."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.taking: TakeIn | None = None

    def step(self, seq: int, data: bytes | bytearray, header: Header, answer: Answer) -> Steps[None]:
        """Key groups leave this slot, or come to it.

        An answered frame of this kind is one that the node manager has answered in this instance's stead, or an ADOPT that the next
        checkpoint would have covered. The node manager sends HANDOVER again if need be; what is to be adopted must be there before the
        next frame. Whoever may write into the log may write such a frame, but not what it is compared with.
        """
        engine, moving, replayed = self._engine, move_of(header), seq <= self._engine.emitted
        if replayed and not isinstance(moving, TakeIn):
            return
        told, cut = yield FindTold()
        if data != told or (isinstance(moving, HandOver) and seq != cut):
            if not replayed:
                engine.waiting.append(engine.error(header, not_told(seq, header)))
            return
        if isinstance(moving, Prepare):
            if moving.groups:
                yield moving
            else:  # the source: what is durable before the cut need not be written while the groups wait
                engine.checkpoint_soon()
            engine.waiting.append(answer)
            return
        yield from engine.send()
        if isinstance(moving, HandOver):
            yield from self._hand_over(seq, moving, answer)
        else:
            yield from self._take_in(seq, moving, None if replayed else answer)

    def _hand_over(self, seq: int, moving: HandOver, answer: Answer) -> Steps[None]:
        """Before the next frame is processed, the groups are durably another slot's."""
        engine = self._engine
        yield from self.taken_in(seq)
        engine.waiting.append(answer)
        yield from engine.checkpoint(seq, engine.waiting, moving=moving)
        engine.letters.hand_over(moving.groups)
        for session in engine.sessions.values():
            session.hand_over(moving.groups)
        yield from engine.emit()
        yield Trim(seq)

    def _take_in(self, seq: int, moving: TakeIn, answer: Answer | None) -> Steps[None]:
        """The groups serve at once. What was delivered stays where it is until a checkpoint has made it part of the state: the next one,
        of whatever cause, or that of the same frame, which the node manager sends once more.

        Until then only what is adopted in memory is right, so dead letters, which are looked up where they lie, do not wait.
        """
        engine, again, letters = self._engine, self.taking == moving, False
        if not again:
            yield from self.taken_in(seq)
            letters = yield from adopt(moving.version, engine.sessions, engine.letters)
            self.taking = moving
        if answer is not None:
            engine.waiting.append(answer)
        if again or letters or engine.commit_frame:
            yield from engine.checkpoint(seq, engine.waiting)
            yield from engine.emit()
            yield Trim(seq)

    def taken_in(self, seq: int) -> Steps[None]:
        """Before frame `seq`: what is adopted is part of the state."""
        if self.taking is not None:
            yield from self._engine.emit()
            yield from self._engine.checkpoint(seq - 1)


def move_of(header: Header) -> Prepare | HandOver | TakeIn:
    """What a frame of the node manager asks for."""
    if header.kind == PREPARE:
        return Prepare(header.number, header.partition, list(header.groups))
    return HandOver(header.number, list(header.groups)) if header.kind == HANDOVER else TakeIn(header.number)


def not_told(seq: int, header: Header) -> ProtocolError:
    """The error for a frame that asks for a move and is not what the node manager wrote."""
    return ProtocolError(
        f"frame {seq} of the log asks the slot to move key groups (kind {header.kind}, version {header.number} of the group map): expected "
        "what the node manager wrote there, which alone moves key groups, and got something else. Nothing was moved; use: udo move"
    )


def adopt(version: int, sessions: dict[str, Session], letters: KeyedLetters) -> Steps[bool]:
    """Take over what the slot is to adopt by that version of the group map, into the state in memory. Whether there are dead letters."""
    adopted: Adopted = yield LoadAdopted(version, sessions)
    for name, (record, groups) in adopted.sessions.items():
        session: Session | None = sessions.get(name)
        if session is None:
            session = sessions[name] = yield LoadSession(name)
        assert session is not None
        session.adopt(record, groups)
    letters.adopt(adopted.letters)
    return any(adopted.letters.values())
