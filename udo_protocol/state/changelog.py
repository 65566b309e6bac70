"""The changelog of a keyed slot: an entry for each checkpoint of its owner, in order, kept while there is a reader.

The owner appends the entry in the step that writes the checkpoint. A reader first joins and then reads the state, in many steps:
what it reads may be newer than where it joined, but no later entry is missing, and entries hold whole values, so that applying one
twice does no harm. There may be any number of readers (an update's standby, a canary, a diff); each has a lease, and holds back at
most CHANGELOG_BYTES: one that is further behind is given up. Positions are bytes since the first entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from udo_protocol.errors import Fenced
from udo_protocol.queue.connection import Arg, Connection

# A reader that is gone costs the owner its entries for so long; renewed after a third of it.
LEASE_MS = 30_000
# Entries kept for the reader that is furthest behind. Loading state of 1 GB takes seconds, in which an owner writes a few megabytes.
CHANGELOG_BYTES = 64 << 20
# Instead of the position of a reader that has to load again.
_GIVEN_UP, _REWOUND = -1, -2
_WHY = {
    _GIVEN_UP: f"it was more than {CHANGELOG_BYTES >> 20} MiB behind",
    _REWOUND: "the owner rolled back to an older state",
}


def join(state: Connection, prefix: str, name: str) -> int:
    """From here on every checkpoint is kept for `name`, until it leaves or its lease ends: the position to read from."""
    return int(state.call("FCALL", "udo_join", 1, prefix, name, LEASE_MS))


def hold(state: Connection, prefix: str, name: str, position: int) -> None:
    """Keep the lease, and what is behind `position`; Fenced if entries may be missing."""
    left = int(state.call("FCALL", "udo_hold", 1, prefix, name, position, LEASE_MS))
    if left <= 0:
        raise Fenced(gone(prefix, name, left))


def gone(prefix: str, name: str, position: int | None) -> str:
    """Why a reader of that position (None: of none) has to load again."""
    return f"{name} does not read the changelog of {prefix} any more: {_WHY.get(position or 0, 'its lease ran out')}"


def leaving(prefix: str, name: str) -> Sequence[Arg]:
    """The command after which nothing is kept for `name`."""
    return ("FCALL", "udo_leave", 1, prefix, name)


def appending(prefix: str, entry: bytes) -> Sequence[Arg]:
    """The owner's command in the step that writes a checkpoint."""
    return ("FCALL", "udo_append", 1, prefix, CHANGELOG_BYTES, entry)


def read(state: Connection, prefix: str, name: str, position: int) -> tuple[list[bytes], int, int | None]:
    """The entries behind `position`, oldest first, and the position behind them; and where `name` is said to be: below 0 or None, some
    may be missing or go on from another state."""
    found, at = state.transaction([("XRANGE", f"{prefix}changelog", f"({position}", "+"), ("HGET", f"{prefix}readers", name)])
    entries = [bytes(fields[1]) for _, fields in found]
    if entries:
        position = int(bytes(found[-1][0]).split(b"-")[0])
    return entries, position, None if at is None else int(bytes(at).split()[0])
