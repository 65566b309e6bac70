"""Copies the key groups that a slot has handed over in a move (moving.py) to the state server of another node. Every step may be repeated.

They are copied key by key under names of this copy, which expire if the copy is not completed. The last step gives all of them to
the slot, once for each version of the map: a copy that comes late changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from udo_protocol.errors import ProtocolError
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.durable import synced
from udo_protocol.queue.keys import SlotKeys, StateKeys
from udo_protocol.state import moving

# Bytes of one message between nodes; a larger value continues in the next.
PART_BYTES = 1 << 20
# A copy that is not completed is removed after this time: no copy takes as long.
_COPY_MS = 3_600_000
_WHAT = "what was handed over"

# A key's name without the prefix, and its value in the form of DUMP.
Carried = tuple[str, bytes]


def handed_over(state: Connection, keys: SlotKeys, version: int) -> Iterator[Carried]:
    """All keys that the slot has handed over by that version of the map."""
    top = keys.savepoint(moving.handed_over(version))
    (sessions,) = untrusted.read(state, ("HKEYS", top.sessions))
    for session in (bytes(s).decode() for s in sessions):
        (manifest,) = untrusted.read(state, ("HGETALL", top.manifest(session)), most_bytes=untrusted.STATE_BYTES)
        for entry in map(bytes, manifest[1::2]):
            piece = entry.split(b" ", 1)[0].decode()
            yield from dumped(state, keys, keys.base_of(piece), keys.changes_of(piece))
        yield from dumped(state, top, top.manifest(session))
    yield from dumped(state, top, top.dead, top.pending, top.replay, top.sessions)


def dumped(state: Connection, top: StateKeys, *keys: str) -> Iterator[Carried]:
    """Those of these keys that exist, by their names below the prefix of `top`."""
    for key in keys:
        (value,) = untrusted.read(state, ("DUMP", key), most_bytes=untrusted.STATE_BYTES)
        if value is not None:
            yield key.removeprefix(top.prefix), bytes(value)


def is_taken(state: Connection, keys: SlotKeys, version: int) -> bool:
    """Whether the slot has received what was handed over by that version."""
    return taken(state, keys) >= version


def taken(state: Connection, keys: SlotKeys) -> int:
    """The last version by which the slot has received key groups; 0: none."""
    return int(state.call("GET", keys.taken) or 0)


def copied(state: Connection, keys: SlotKeys, version: int, copy: str, carried: Iterable[Carried]) -> str:
    """Write `carried` beside the slot's keys, under the name `copy`, which no other copy has; returns that name.

    If the slot has received that version before, `carried` is not read, and the name is ''.
    """
    if is_taken(state, keys, version):
        return ""
    names = [""]  # never empty, even if nothing was handed over
    for name, value in carried:
        state.call("RESTORE", keys.taking(copy, name), _COPY_MS, value, "REPLACE")
        names.append(name)
    # Written last: `take` needs it, and all that it names, since a part may have expired by then.
    everything = keys.taking(copy, "all")
    state.transaction([("RPUSH", everything, *names), ("PEXPIRE", everything, _COPY_MS)])
    return copy


def take(state: Connection, keys: SlotKeys, version: int, copy: str) -> None:
    """Give the slot what was copied under that name, durably; nothing for ''. ProtocolError if a part is missing."""
    if copy and state.call("FCALL", "udo_take", 1, keys.prefix, copy, version) < 0:
        raise ProtocolError(f"what was handed over to {keys} by version {version} of the group map has come in part; expected all of it")
    synced(state, _WHAT)


def leave_out(state: Connection, keys: SlotKeys, version: int) -> None:
    """Count that version as received, durably, without what was handed over."""
    state.call("SET", keys.taken, version)
    synced(state, _WHAT)


def forget(state: Connection, keys: SlotKeys, version: int) -> None:
    """Remove what was handed over, since the other slot has it."""
    state.call("FCALL", "udo_handed_on", 1, keys.prefix, version)
