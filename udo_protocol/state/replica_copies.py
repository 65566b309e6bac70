"""The content of a slot's replica (replication.py): a complete copy of the slot's state, and the writes that follow it.

A copy is a savepoint of the slot, read while the owner continues. It is written under a prefix of its own, so that an older copy of the
same slot stays complete until this one is, and it notes its log and its position in it. Of all that comes from another node, only commands
by which owners change state are executed, and only on the keys of this copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from udo_protocol.errors import Conflict, ProtocolError, ServerLost
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection, as_int
from udo_protocol.queue.durable import synced
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import pieces, replication, savepoints
from udo_protocol.state.carrying import Dumped, dumped
from udo_protocol.state.replication import START, LoggedWrites

_FUNCTIONS = frozenset((b"udo_replaced", b"udo_run"))
# Functions that a standby of an update calls at its end; a replica has no standbys.
_IGNORED = frozenset((b"udo_leave",))
_SCAN = 1000


class Held(NamedTuple):
    """The log that a copy follows, and the position that it has reached."""

    log: str
    position: str


# -- the owner's node ----------------------------------------------------------------------------------------------------


def copying(state: Connection, keys: SlotKeys, node: str) -> Iterator[Dumped]:
    """The slot's state at one moment, key by key; first `log position token`, without a name. Conflict if the slot has no replicas.

    The log must already be kept for the copy (replication.pin). The token is the last one given out: no owner of a copy may get it again,
    since owners name pieces by it.
    """
    known = replication.replicas(state, keys)
    if known is None:
        raise Conflict(f"slot {keys} has no replicas by now")
    name = f"replica-{node}"
    steps: list[Sequence[Arg]] = [
        ("FCALL", "udo_savepoint", 1, keys.prefix, name, savepoints.LEASE_MS, "", 1),
        ("XREVRANGE", keys.replog, "+", "-", "COUNT", 1),
        ("GET", keys.tokens),
    ]
    try:
        _, last, token = state.transaction(steps)
        position = bytes(last[0][0]).decode() if last else START
        yield "", f"{known.log} {position} {as_int(token)}".encode()
        keep = savepoints.holding(state, keys, name)
        yield from _kept(state, keys, name, keep)
    finally:
        with suppress(ServerLost, OSError):
            savepoints.drop(state, keys, name)


def _kept(state: Connection, keys: SlotKeys, name: str, keep: Callable[[], None]) -> Iterator[Dumped]:
    top = keys.savepoint(name)
    for session in pieces.records(state, keys, name):
        (manifest,) = untrusted.read(state, ("HGETALL", top.manifest(session)), most_bytes=untrusted.STATE_BYTES)
        for entry in map(bytes, manifest[1::2]):
            keep()
            place, _ = pieces.parsed(entry, top.manifest(session))
            yield from dumped(state, keys, keys.base_of(place.piece), keys.changes_of(place.piece))
        yield from dumped(state, top, top.manifest(session))
    yield from dumped(state, top, *map(top.named, sorted(replication.NAMES)))
    for key in scanned(state, keys.runs("*")):
        yield from dumped(state, keys, key)
    keep()


def scanned(state: Connection, pattern: str) -> Iterator[str]:
    """The keys that match the pattern."""
    cursor: bytes | str = "0"
    while True:
        cursor, found = state.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN)
        yield from (bytes(key).decode() for key in found)
        if cursor == b"0":
            return


# -- the replica's node --------------------------------------------------------------------------------------------------


def received(state: Connection, keys: SlotKeys, carried: Iterable[Dumped]) -> Held:
    """Write a copy under an unused prefix; durable when it returns. ProtocolError if the copy is incomplete."""
    at = None
    for name, value in carried:
        if not name:
            log, position, token = value.decode().split(" ")
            at = Held(log, position)
            state.call("SET", keys.tokens, int(token))
        elif replication.is_of_the_state(name):
            state.call("RESTORE", keys.named(name), 0, value, "REPLACE")
        else:
            raise ProtocolError(f"a copy of a slot's state brings {name!r:.100}, which is none of its keys")
    if at is None:
        raise ProtocolError("a copy of a slot's state has come without its beginning")
    for session in pieces.records(state, keys):
        _only_counted(state, keys, session)
    _note(state, keys, at)
    synced(state, "a copy of a slot")
    return at


def _only_counted(state: Connection, keys: SlotKeys, session: str) -> None:
    """Remove changes that the owner appended but the manifest does not count: they come again with the log."""
    (manifest,) = untrusted.read(state, ("HGETALL", keys.manifest(session)), most_bytes=untrusted.STATE_BYTES)
    for entry in map(bytes, manifest[1::2]):
        place, _ = pieces.parsed(entry, keys.manifest(session))
        base, changes = keys.base_of(place.piece), keys.changes_of(place.piece)
        cut: Sequence[Arg] = ("LTRIM", changes, 0, place.changes - 1) if place.changes else ("DEL", changes)
        _, size, count = state.transaction([cut, ("STRLEN", base), ("LLEN", changes)])
        if (size, count) != (place.base_bytes, place.changes):
            raise ProtocolError(f"a copy of a slot's state has come in part: of piece {place.piece} {size} bytes and {count} changes")


def held(state: Connection, keys: SlotKeys) -> Held:
    """The log and position of a complete copy; ('', START) if there is none."""
    log, position = state.call("HMGET", keys.replica, "log", "position")
    if log is None:
        return Held("", START)
    return Held(bytes(log).decode(), bytes(position).decode())


def _note(state: Connection, keys: SlotKeys, at: Held) -> None:
    state.call("HSET", keys.replica, "log", at.log, "position", at.position)


def execute(state: Connection, keys: SlotKeys, source: SlotKeys, writes: Sequence[LoggedWrites]) -> str:
    """Execute these writes, which must be complete transactions, in one transaction; durable when it returns. Returns the new position.

    Conflict if the slot has to be copied again, since its state was replaced by another one.
    """
    commands: list[Sequence[Arg]] = []
    for entry in writes:
        commands += [_mapped(command, source, keys) for command in entry.commands if command[1] not in _IGNORED]
        if entry.token:
            commands.append(("SET", keys.tokens, entry.token))
    last = writes[-1].position
    commands.append(("HSET", keys.replica, "position", last))
    state.transaction(commands)
    synced(state, "a copy of a slot")
    return last


def _mapped(command: list[bytes], source: SlotKeys, keys: SlotKeys) -> list[Arg]:
    what = command[0].upper()
    if what == b"FCALL":
        if command[1] not in _FUNCTIONS or command[2:4] != [b"1", source.prefix.encode()]:
            raise Conflict(f"{command[1].decode()} replaces the state of {source}: it has to be copied again")
        return [*command[:3], keys.prefix, *command[4:]]
    replication.require_write(what.decode("ascii", "replace"), command[1].decode("utf-8", "replace"), source)
    name = command[1].decode().removeprefix(source.prefix)
    if replication.is_of_the_node(name):  # in the log of an earlier release
        return ["EXISTS", keys.prefix]
    if what == b"DEL" and len(command) > 2:
        raise ProtocolError("expected the removal of one key")
    return [what, keys.named(name), *command[2:]]
