"""Dead letters of a keyed slot on the state server: reads for the engine, and the commands that write its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state.dead_letters import DEAD, KEPT, PENDING, REPLAY, KeyedName
from udo_protocol.state.savepoints import at
from udo_runtime.engine.content import LetterChanges
from udo_runtime.state.letters import sizes


class Ledger:
    """The dead letters of one slot. `kept`: read those kept before the update, during a rollback that has not yet restored them."""

    def __init__(self, state: Connection, prefix: str) -> None:
        self._state, self._prefix = state, prefix
        self.kept = False

    @property
    def _source(self) -> str:
        return self._prefix + KEPT if self.kept else self._prefix

    def sizes(self) -> dict[str, dict[str, int]]:
        """The bytes of all letters: hash -> name -> bytes."""
        return {where: sizes(self._state, self._source + where) for where in (PENDING, DEAD)}

    def adopted(self, name: str) -> dict[str, dict[str, int]]:
        """The bytes of each letter that is to be adopted under that name: hash -> name -> bytes."""
        return {where: sizes(self._state, at(self._prefix, name) + where) for where in (PENDING, DEAD)}

    def replays(self) -> Mapping[str, str]:
        """Letters that are to be processed again: name -> mark (udo_protocol/state/dead_letters.py, REPLAY)."""
        flat = self._state.call("HGETALL", self._source + REPLAY)
        return {bytes(name).decode(): bytes(mark).decode() for name, mark in zip(flat[::2], flat[1::2], strict=True)}

    def bodies(self, names: Sequence[KeyedName]) -> list[bytes | None]:
        """The stored letters of these names; None for one that was dropped."""
        return list(self._state.transaction([("HGET", self._source + DEAD, str(name)) for name in names]))

    def commands(self, changes: LetterChanges) -> list[Sequence[Arg]]:
        """The commands that write these changes."""
        p, commands = self._prefix, list[Sequence[Arg]]()
        for wanted, name, body in changes.put:
            commands.append(("HSET", p + wanted, str(name), body))
        for where, wanted, name in changes.moved:
            if (body := self._state.call("HGET", self._source + where, str(name))) is not None:  # else dropped from outside
                commands.append(("HSET", p + wanted, str(name), body))
                commands += [("HDEL", p + where, str(name))] if where != wanted else []
        for name, epoch in changes.marks.items():
            commands.append(("HDEL", p + REPLAY, str(name)) if epoch is None else ("HSET", p + REPLAY, str(name), epoch))
        for where, name in changes.gone:
            commands += [("HDEL", p + where, str(name)), ("HDEL", p + REPLAY, str(name))]
        return commands
