"""Dead letters of a stateless slot: they are durable before the frame's answer is emitted, so that none is lost.

The letters of a frame are written in one transaction, as the owner. Letters that a former owner wrote for a frame that it did not answer
are removed by the next owner, which processes that frame again. Thus each accepted event is answered or a dead letter, never both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from udo_protocol.limits import SlotLimits
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.frame import Header
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.checkpoints import OwnedState, amend
from udo_protocol.state.dead_letters import LaneName, parse_name
from udo_runtime.engine.letter import full, letter
from udo_runtime.execution.bad_events import BadEvent
from udo_runtime.failure import ProcessingError


class Room:
    """Room for further dead letters of a slot, by its limits. Sizes are cached, and read again before a letter is refused."""

    def __init__(self, state: Connection, keys: SlotKeys, limits: SlotLimits) -> None:
        self._state, self._keys, self._limits = state, keys, limits
        self.sizes: dict[str, int] | None = None  # name -> bytes

    def events(self) -> int:
        """The number of bad events for which there is room."""
        if self.sizes is None or len(self.sizes) >= self._limits.dead_letters:
            self.look()
        return max(self._limits.dead_letters - len(self.sizes or ()), 0)

    def look(self) -> None:
        """Read the sizes from the server: letters may have been dropped."""
        self.sizes = sizes(self._state, self._keys.dead)

    def take(self, letters: dict[str, bytes], first: ProcessingError) -> None:
        """Reserve room for these letters. ProcessingError, made from the error of the first one, if there is not enough."""
        for looked in (False, True):
            if looked or self.sizes is None:
                self.look()
            wanted = {**(self.sizes or {}), **{n: len(data) for n, data in letters.items()}}
            if len(wanted) <= self._limits.dead_letters and sum(wanted.values()) <= self._limits.dead_letter_bytes:
                self.sizes = wanted
                return
        raise full(first, self._keys.deployment, self._limits)


def sizes(state: Connection, key: str) -> dict[str, int]:
    """Name -> bytes, for the letters in this hash."""
    names = [bytes(n) for n in state.call("HKEYS", key)]
    lengths = state.transaction([("HSTRLEN", key, n) for n in names]) if names else []
    return {n.decode(): size for n, size in zip(names, lengths, strict=True)}


class StatelessLetters:
    """The dead letters of one slot, for its owner. `run_id`: the queue server's."""

    def __init__(self, owned: OwnedState, run_id: str, limits: SlotLimits) -> None:
        self._owned, self._run_id = owned, run_id
        self.room = Room(owned.server, owned.keys, limits)

    def begin(self, emitted: int) -> None:
        """Remove, as a new owner, letters of frames after `emitted`, which it processes again."""
        names = [bytes(n).decode() for n in self._owned.server.call("HKEYS", self._owned.keys.dead)]
        mine = [(text, n) for text in names if isinstance(n := parse_name(text), LaneName) and n.run_id == self._run_id]
        if open_ones := [text for text, n in mine if n.seq > emitted]:
            self._write([("HDEL", self._owned.keys.dead, *open_ones)])

    def keep(self, seq: int, header: Header, found: Sequence[BadEvent], reference: str, instance: str) -> None:
        """Make a frame's bad events durable; ProcessingError if there is no room, Fenced if another instance owns the slot."""
        kept = {
            str(LaneName(header.lane, self._run_id, seq, header.number, b.row)): letter(
                b, header, reference, instance, time.time()
            ).encode()
            for b in found
        }
        self.room.take(kept, found[0].error)
        self._write([("HSET", self._owned.keys.dead, *(x for pair in kept.items() for x in pair))])

    def _write(self, writes: Sequence[Sequence[Arg]]) -> None:
        amend(self._owned, writes)
