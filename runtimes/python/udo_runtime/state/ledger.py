"""Dead letters of a keyed slot on the state server: what its engine asks for, and the commands that write what it decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state.dead_letters import DEAD, KEPT, PENDING, REPLAY, KeyedName
from udo_runtime.engine.content import LetterChanges
from udo_runtime.state.letters import sizes


class Ledger:
    """Of one slot. `kept`: until the durable letters are those kept before the update, these are read instead."""

    def __init__(self, state: Connection, prefix: str) -> None:
        self._state, self._prefix = state, prefix
        self.kept = False

    @property
    def _source(self) -> str:
        return self._prefix + KEPT if self.kept else self._prefix

    def sizes(self) -> dict[str, dict[str, int]]:
        """Bytes of each letter, by hash and name."""
        return {where: sizes(self._state, self._source + where) for where in (PENDING, DEAD)}

    def replays(self) -> Mapping[str, str]:
        """Marks of the letters to be sent again, by name."""
        flat = self._state.call("HGETALL", self._source + REPLAY)
        return {bytes(name).decode(): bytes(mark).decode() for name, mark in zip(flat[::2], flat[1::2], strict=True)}

    def bodies(self, names: Sequence[KeyedName]) -> list[bytes | None]:
        """Their stored form; None: dropped."""
        return list(self._state.transaction([("HGET", self._source + DEAD, str(name)) for name in names]))

    def commands(self, changes: LetterChanges) -> list[Sequence[Arg]]:
        """What makes these durable."""
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
