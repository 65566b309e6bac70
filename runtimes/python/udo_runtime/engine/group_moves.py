"""The engine's part in moves of key groups that leave a slot or come to it, as requested by frames of the node manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.frame import HANDOVER, PREPARE, Header
from udo_runtime.engine.effects import Answer, FindTold, FreeGroups, HandOver, LoadAdopted, LoadSession, Prepare, Steps, TakeIn, Trim
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.state.adopted import Adopted
from udo_runtime.state.session import Session

if TYPE_CHECKING:
    from udo_runtime.engine.keyed_engine import Engine


class GroupMoves:
    """One engine's part in moves. `taking`: groups adopted in memory; the engine's next checkpoint makes them part of the state."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.taking: TakeIn | None = None

    def step(self, seq: int, data: bytes | bytearray, header: Header, answer: Answer) -> Steps[None]:
        """Execute a frame that moves key groups out of this slot, or into it.

        If the frame has been answered already, the node manager answered it on behalf of this instance, or it is an ADOPT that the next
        checkpoint would have covered. The node manager sends HANDOVER again if needed; adopted groups must be there before the next
        frame. An operator can write such a frame into the log, but not the copy with which it is compared.
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
            else:  # the source: state that is durable before the cut need not be written while the groups wait
                engine.checkpoint_soon()
            engine.waiting.append(answer)
            return
        yield from engine.send()
        if isinstance(moving, HandOver):
            yield from self._hand_over(seq, moving, answer)
        else:
            yield from self._take_in(seq, moving, None if replayed else answer)

    def _hand_over(self, seq: int, moving: HandOver, answer: Answer) -> Steps[None]:
        """Hand the groups over durably, before the next frame is processed."""
        engine = self._engine
        yield from self.taken_in(seq)
        engine.waiting.append(answer)
        yield from engine.checkpoint(seq, engine.waiting, moving=moving)
        engine.letters.hand_over(moving.groups)
        left = [group for session in engine.sessions.values() for group in session.hand_over(moving.groups)]
        yield from engine.emit()
        yield Trim(seq)
        yield FreeGroups(left)

    def _take_in(self, seq: int, moving: TakeIn, answer: Answer | None) -> Steps[None]:
        """Adopt the groups, which serve at once. The delivered state stays where it is until a checkpoint makes it part of the slot's: the
        next one, whatever causes it, or that of the same frame, which the node manager sends once more.

        Until that checkpoint only the adopted state in memory is valid. Dead letters are looked up on the server and cannot wait for it.
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
        """Make adopted groups part of the state before frame `seq`."""
        if self.taking is not None:
            yield from self._engine.emit()
            yield from self._engine.checkpoint(seq - 1)


def move_of(header: Header) -> Prepare | HandOver | TakeIn:
    """The request in a frame of the node manager."""
    if header.kind == PREPARE:
        return Prepare(header.number, header.partition, list(header.groups), header.copy)
    return HandOver(header.number, list(header.groups)) if header.kind == HANDOVER else TakeIn(header.number)


def not_told(seq: int, header: Header) -> ProtocolError:
    """The error for a frame that requests a move and is not the one that the node manager wrote."""
    return ProtocolError(
        f"frame {seq} of the log asks the slot to move key groups (kind {header.kind}, version {header.number} of the group map): expected "
        "what the node manager wrote there, which alone moves key groups, and got something else. Nothing was moved; use: udo move"
    )


def adopt(version: int, sessions: dict[str, Session], letters: KeyedLetters) -> Steps[bool]:
    """Load the groups to be adopted by that version of the group map into the state in memory; returns whether they have dead letters."""
    adopted: Adopted = yield LoadAdopted(version, sessions)
    for name, (record, groups) in adopted.sessions.items():
        session: Session | None = sessions.get(name)
        if session is None:
            session = sessions[name] = yield LoadSession(name)
        assert session is not None
        session.adopt(record, groups)
    letters.adopt(adopted.letters)
    return any(adopted.letters.values())
