"""Key groups of another slot, or of another node's as far as they have been copied here, read ahead of their move and decoded.

Bases are never changed and changes only appended, so at the move only later changes are left to be read. A thread of its own
reads, on a connection of its own, while the slot answers; groups that it lacks, or whose base was replaced since, are read
when they are adopted. So are groups with values of another state version: the operator's migrate() belongs to the slot's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from threading import Event, Thread

from udo_protocol import supervised
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import PieceKeys, SlotKeys
from udo_protocol.state import moving, pieces, session_record
from udo_protocol.state.pieces import PiecePlace, StoredGroup
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.engine.effects import Prepare
from udo_runtime.state.groups import Group
from udo_runtime.state.stored_session import restored
from udo_runtime.state.stored_values import needs_migration
from udo_runtime.state.versions import Versions

# Passes over the groups. The first one takes long if the state is large; the second reads the changes since, so that little is left.
_LOOKS = 2
Entries = Mapping[int, tuple[PiecePlace, bytes]]


class _Over(Exception):
    """The groups are being adopted, which reads everything that has not been read by now."""


class AheadOfMove:
    """Reads ahead, for the slot with `keys`, what a move is going to bring it."""

    def __init__(self, connect: Callable[[], Connection], keys: SlotKeys, move: Prepare, versions: Versions | None) -> None:
        self._keys, self._version, self._versions = keys, move.version, versions
        self.groups, self.copy = frozenset(move.groups), move.copy
        self._source: PieceKeys = keys.taking(move.copy) if move.copy else SlotKeys(keys.deployment, move.source)
        self._have: dict[str, dict[int, Group]] = {}
        self._over = Event()
        self._connect = connect
        self._thread: Thread = supervised.once("ahead-of-move", lambda: self._read(_LOOKS))

    def again(self) -> None:
        """Start another pass after the earlier ones."""
        before = self._thread

        def look() -> None:
            before.join()
            self._read(1)

        self._thread = supervised.once("ahead-of-move", look)

    def _read(self, looks: int) -> None:
        with suppress(_Over), closing(self._connect()) as state:
            for _ in range(looks):
                for session, record in session_record.read(state, self._source).items():
                    self._check()
                    entries = manifest(state, self._source, session)
                    wanted = {n: entry for n, entry in entries.items() if n in self.groups}
                    self._have[session] = self._updated(state, session, record, wanted)
            moving.prepared(state, self._keys, self._version)

    def _updated(self, state: Connection, session: str, record: SessionRecord, wanted: Entries) -> dict[int, Group]:
        have = self._have.get(session, {})
        known = advance(
            state,
            self._source,
            {n: have[n] for n, (place, _) in wanted.items() if n in have and continues(have[n].place, place)},
            wanted,
            self._as_it_is,
        )
        rest = [n for n in wanted if n not in known]
        read = pieces.read(state, self._source, session, groups=rest, between=self._check) if rest else ()
        as_it_is = ((n, group) for n, group in read if n >= 0 and self._as_it_is(group))
        return {**known, **restored(session, record, as_it_is, self._versions, decode=True).groups}  # nothing is left to be migrated

    def _as_it_is(self, stored: StoredGroup) -> bool:
        return not needs_migration(self._versions, stored)

    def _check(self) -> None:
        if self._over.is_set():
            raise _Over

    def stop(self) -> None:
        """Stop reading: the groups are not needed any more."""
        self._over.set()

    def take(self, session: str, wanted: Entries) -> dict[int, Group]:
        """Those of the session's groups that can be advanced to the delivered state; they belong to the caller from now on."""
        self._over.set()
        self._thread.join()
        renamed = f"v{self._version}."
        places = {n: place._replace(piece=place.piece.removeprefix(renamed)) for n, (place, _) in wanted.items()}
        return {n: group for n, group in self._have.pop(session, {}).items() if n in places and continues(group.place, places[n])}


def continues(have: PiecePlace, place: PiecePlace) -> bool:
    """Whether a group at place `have` lacks only changes to reach the state at `place`."""
    return (have.piece, have.base_bytes) == (place.piece, place.base_bytes) and have.changes <= place.changes


def manifest(state: Connection, keys: PieceKeys, session: str, savepoint: str = "") -> dict[int, tuple[PiecePlace, bytes]]:
    """The manifest of a session: group -> (place of its values, meta)."""
    key = keys.savepoint(savepoint).manifest(session)
    (flat,) = untrusted.read(state, ("HGETALL", key), most_bytes=untrusted.STATE_BYTES)
    with untrusted.reading(key, "fields named by key groups"):
        return {int(n): pieces.parsed(entry, key) for n, entry in zip(flat[::2], flat[1::2], strict=True)}


def advance(
    state: Connection, keys: PieceKeys, have: Mapping[int, Group], wanted: Entries, usable: Callable[[StoredGroup], bool] = lambda _: True
) -> dict[int, Group]:
    """Read and apply the changes that these groups lack. Leaves out groups whose piece has been removed in the meantime, and those whose
    changes and meta are not `usable`."""
    lacking = {n: group for n, group in have.items() if group.place.changes < wanted[n][0].changes}
    commands: list[list[Arg]] = [
        ["LRANGE", keys.changes_of(wanted[n][0].piece), group.place.changes, wanted[n][0].changes - 1] for n, group in lacking.items()
    ]
    replies = untrusted.read(state, *commands, most_bytes=untrusted.STATE_BYTES) if commands else []
    changes: dict[int, list[bytes]] = dict(zip(lacking, replies, strict=True))
    advanced: dict[int, Group] = {}
    for n, group in have.items():
        place, meta = wanted[n]
        lacked = changes.get(n, [])
        if len(lacked) == place.changes - group.place.changes and usable(StoredGroup(meta, None, lacked)):
            for at, change in enumerate(lacked, group.place.changes + 1):
                group.adopt(meta, change, place._replace(changes=at))
            group.adopt(meta, None, place)
            advanced[n] = group
    return advanced
