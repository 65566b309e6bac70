"""Dead letters of a keyed slot on the state server: reads for the engine, and the commands that write its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys, StateKeys
from udo_protocol.state.dead_letters import DEAD, PENDING, KeyedName
from udo_protocol.state.rewinding import SAVEPOINT
from udo_runtime.durable.letters import sizes
from udo_runtime.engine.content import LetterChanges


class Ledger:
    """The dead letters of one slot. `kept`: read those kept before the update, during a rollback that has not yet restored them."""

    def __init__(self, state: Connection, keys: SlotKeys) -> None:
        self._state, self._keys = state, keys
        self.kept = False

    @property
    def _source(self) -> StateKeys:
        return self._keys.savepoint(SAVEPOINT) if self.kept else self._keys

    def sizes(self) -> dict[str, dict[str, int]]:
        """The bytes of all letters: hash -> name -> bytes."""
        return {where: sizes(self._state, self._source.named(where)) for where in (PENDING, DEAD)}

    def adopted(self, name: str) -> dict[str, dict[str, int]]:
        """The bytes of each letter that is to be adopted under that name: hash -> name -> bytes."""
        return {where: sizes(self._state, self._keys.savepoint(name).named(where)) for where in (PENDING, DEAD)}

    def replays(self) -> Mapping[str, str]:
        """Letters that are to be processed again: name -> mark (udo_protocol/state/dead_letters.py, REPLAY)."""
        flat = self._state.call("HGETALL", self._source.replay)
        return {bytes(name).decode(): bytes(mark).decode() for name, mark in zip(flat[::2], flat[1::2], strict=True)}

    def bodies(self, names: Sequence[KeyedName]) -> list[bytes | None]:
        """The stored letters of these names; None for one that was dropped."""
        return list(self._state.transaction([("HGET", self._source.dead, str(name)) for name in names]))

    def commands(self, changes: LetterChanges) -> list[Sequence[Arg]]:
        """The commands that write these changes."""
        keys, commands = self._keys, list[Sequence[Arg]]()
        for wanted, name, body in changes.put:
            commands.append(("HSET", keys.named(wanted), str(name), body))
        for where, wanted, name in changes.moved:
            if (body := self._state.call("HGET", self._source.named(where), str(name))) is not None:  # else dropped from outside
                commands.append(("HSET", keys.named(wanted), str(name), body))
                commands += [("HDEL", keys.named(where), str(name))] if where != wanted else []
        for name, body in changes.failed.items():
            if self._state.call("HEXISTS", self._source.dead, str(name)):  # else dropped from outside
                commands.append(("HSET", keys.dead, str(name), body))
        for name, epoch in changes.marks.items():
            commands.append(("HDEL", keys.replay, str(name)) if epoch is None else ("HSET", keys.replay, str(name), epoch))
        for where, name in changes.gone:
            commands += [("HDEL", keys.named(where), str(name)), ("HDEL", keys.replay, str(name))]
        return commands
