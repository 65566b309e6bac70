"""The changelog of a keyed slot: one entry for each checkpoint of its owner, in order, kept while there are readers.

An entry has a head and one part for each key group that the checkpoint wrote. A reader of some key groups gets only their parts.

The owner appends the entry in the transaction that writes the checkpoint. A reader first joins, then reads the state in many steps. That
state may be newer than the position at which it joined, but no later entry is missing, and a group's meta says how many checkpoints have
written it, so that a reader knows the parts that it need not apply any more. There may be any number of readers (the standby of an update,
a canary, diffs). Each has a lease, and entries are kept for a reader that is at most CHANGELOG_BYTES behind; one that falls further behind
has to load again. Positions are bytes since the first entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from udo_protocol.errors import Fenced
from udo_protocol.queue.connection import Arg, Connection, as_int
from udo_protocol.queue.keys import SlotKeys

# Entries are kept this long for a reader that died; a reader renews its lease after a third of it.
LEASE_MS = 30_000
# Bytes of entries kept for the reader that is furthest behind. Loading 1 GB of state takes seconds, in which an owner writes a few MB.
CHANGELOG_BYTES = 64 << 20
# The highest sequence number of a stream's entries: a range that begins after it begins with the next checkpoint.
_LAST_PART = (1 << 64) - 1
# Stored in place of the position of a reader that has to load again.
_TOO_FAR_BEHIND, _ROLLED_BACK, GROUPS_MOVED = -1, -2, -3
_WHY = {
    _TOO_FAR_BEHIND: f"it was more than {CHANGELOG_BYTES >> 20} MiB behind",
    _ROLLED_BACK: "the owner rolled back to an older state",
    GROUPS_MOVED: "key groups were moved out of the slot or into it",
}


class LoggedCheckpoint(NamedTuple):
    """An entry as it is stored. `parts`: (`group session`, part) for each group written; groups below 0 hold event times."""

    head: bytes
    parts: list[tuple[str, bytes]]


def join(state: Connection, keys: SlotKeys, name: str) -> int:
    """Become a reader: from now on entries are kept for `name`, until it leaves or its lease ends. Returns the position to read from."""
    return int(state.call("FCALL", "udo_join", 1, keys.prefix, name, LEASE_MS))


def hold(state: Connection, keys: SlotKeys, name: str, position: int) -> None:
    """Renew the lease and report that entries up to `position` have been read. Fenced if later entries may be missing."""
    left = int(state.call("FCALL", "udo_hold", 1, keys.prefix, name, position, LEASE_MS))
    if left <= 0:
        raise Fenced(gone(keys, name, left))


def gone(keys: SlotKeys, name: str, position: int | None) -> str:
    """Why a reader with this stored position (None: it has none) has to load again."""
    return f"{name} does not read the changelog of {keys} any more: {_WHY.get(position or 0, 'its lease ran out')}"


def leaving(keys: SlotKeys, name: str) -> Sequence[Arg]:
    """The command by which `name` stops being a reader."""
    return ("FCALL", "udo_leave", 1, keys.prefix, name)


def appending(keys: SlotKeys, entry: LoggedCheckpoint) -> Sequence[Arg]:
    """The command that appends an entry, for the owner's transaction that writes the checkpoint."""
    return ("FCALL", "udo_append", 1, keys.prefix, CHANGELOG_BYTES, entry.head, *(word for part in entry.parts for word in part))


def read(
    state: Connection, keys: SlotKeys, name: str, position: int, groups: Collection[int] | None = None
) -> tuple[list[LoggedCheckpoint], int, int | None]:
    """(entries, position, stored position): the entries after `position`, oldest first, with the parts of all groups or of `groups` and
    those that hold event times; the position after them; and the position that is stored for `name`. If that is below 0 or None, entries
    may be missing, or continue another state."""
    stored = ("HGET", keys.readers, name)
    wanted: Sequence[Arg] = ("XRANGE", keys.changelog, f"({position}-{_LAST_PART}", "+")
    if groups is not None:
        # A mirror asks before each frame: thousands of groups are only named if there is something to read.
        logged, at = state.transaction([("GET", keys.logged), stored])
        if as_int(logged) <= position:
            return [], position, _stored(at)
        wanted = ("FCALL", "udo_entries", 1, keys.prefix, position, *groups)
    found, at = state.transaction([wanted, stored])
    if found:
        position = int(bytes(found[-1][0]).split(b"-")[0])
    return _entries(fields for _, fields in found), position, _stored(at)


def _stored(at: bytes | None) -> int | None:
    return None if at is None else int(bytes(at).split()[0])


def _entries(found: Iterable[Sequence[bytes]]) -> list[LoggedCheckpoint]:
    entries: list[LoggedCheckpoint] = []
    for fields in found:
        for field, value in zip(fields[::2], fields[1::2], strict=True):
            if field == b"head":
                entries.append(LoggedCheckpoint(bytes(value), []))
            else:
                entries[-1].parts.append((bytes(field).decode(), bytes(value)))
    return entries
