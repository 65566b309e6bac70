"""Key groups on a state server, written as a slot's owner writes them, and read again."""

from __future__ import annotations

import json

from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import PieceKeys, SlotKeys
from udo_protocol.state import pieces
from udo_protocol.state.pieces import PiecePlace, StoredGroup

A, B = SlotKeys("t", 0), SlotKeys("t", 1000)


class GroupsOwner:
    """Writes groups as the owner of a slot does."""

    def __init__(self, state: Connection, at: SlotKeys) -> None:
        self._state, self._at = state, at

    def write(self, session: str, n: int, piece: str, *changes: bytes) -> None:
        """Write a key group, or a partition's event times (a number below 0): a base and changes to it."""
        self._state.call("HSET", f"{self._at}sessions", session, json.dumps({"last_ended": 3, "of": self._at.prefix}))
        place = PiecePlace(piece, len(changes), len(piece), sum(map(len, changes)))
        self._state.transaction(pieces.writing(self._at, session, n, b"meta", place, piece.encode(), []))
        if changes:
            self._state.transaction(pieces.writing(self._at, session, n, b"meta", place, None, changes))

    def append(self, session: str, n: int, piece: str, before: int, change: bytes) -> None:
        """Append a change to the key group's piece, which has `before` changes."""
        key = self._at.manifest(session)
        place, meta = pieces.parsed(self._state.call("HGET", key, n), key)
        assert (place.piece, place.changes) == (piece, before)
        place = place._replace(changes=before + 1, change_bytes=place.change_bytes + len(change))
        self._state.transaction(pieces.writing(self._at, session, n, meta, place, None, [change]))


def groups(state: Connection, at: PieceKeys, session: str, savepoint: str = "") -> dict[int, tuple[bytes | None, list[bytes]]]:
    """The groups of a session, in the state or in a savepoint: base and changes."""
    found: dict[int, StoredGroup] = dict(pieces.read(state, at, session, savepoint))
    return {n: (g.base and bytes(g.base), list(map(bytes, g.deltas))) for n, g in found.items()}
