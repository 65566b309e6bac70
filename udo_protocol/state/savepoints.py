"""Savepoints: the state of one checkpoint, kept while the owner writes further checkpoints.

A savepoint is a copy of the manifests (pieces.py), which name the pieces that make up the state; the pieces are not copied. A piece is
removed when neither the state nor a savepoint names it. A savepoint has a lease. The pieces that only savepoints name are bounded by
MOST_BYTES per slot: beyond it the oldest savepoint is given up, and its reader gets an error that says so. A savepoint for a rollback
also contains a copy of the dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from udo_protocol.errors import Conflict, ServerLost
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import PieceKeys, SlotKeys

# Bytes of pieces that only savepoints name. One savepoint names at most the bases and about as many bytes of changes: enough for the
# largest state measured, 1 GB.
MOST_BYTES = 2 << 30
# A reader renews the lease while it reads; after a reader's death the pieces are kept for at most this long.
LEASE_MS = 60_000
# Stored in place of the time at which a savepoint was made.
_GIVEN_UP, _REWOUND = -1, -2


def make(state: Connection, keys: SlotKeys, name: str, lease_ms: int = LEASE_MS, info: str = "", *, letters: bool = False) -> None:
    """Make a savepoint of the current durable state; replaces one of the same name. `letters`: with the dead letters."""
    with untrusted.reading(keys.sessions, "sessions by name"):
        state.call(*_making(keys, name, lease_ms, info, letters=letters))


def hold(state: Connection, keys: SlotKeys, name: str) -> None:
    """Renew the lease. Conflict, with the reason, if the savepoint is gone."""
    if state.call("FCALL", "udo_hold_savepoint", 1, keys.prefix, name, LEASE_MS) <= 0:
        raise Conflict(gone(state, keys, name) or f"savepoint {name} of {keys} is not there any more: its lease ran out")


def holding(state: Connection, keys: SlotKeys, name: str) -> Callable[[], None]:
    """A function to be called often, which renews the lease when it is due. Errors as in `hold`."""
    due = 0.0

    def keep() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            hold(state, keys, name)
            due = now + LEASE_MS / 3000

    return keep


def drop(state: Connection, keys: SlotKeys, name: str) -> None:
    """Remove a savepoint."""
    state.call("FCALL", "udo_drop_savepoint", 1, keys.prefix, name)


@contextmanager
def made(state: Connection, slots: Sequence[SlotKeys], name: str) -> Iterator[None]:
    """Savepoints of one moment in these slots of one server, which exist while the block runs."""
    with untrusted.reading(slots[0].sessions, "sessions by name"):
        state.transaction([_making(keys, name, LEASE_MS) for keys in slots])
    try:
        yield
    finally:
        with suppress(ServerLost, OSError):
            for keys in slots:
                drop(state, keys, name)


def _making(keys: SlotKeys, name: str, lease_ms: int, info: str = "", *, letters: bool = False) -> list[Arg]:
    return ["FCALL", "udo_savepoint", 1, keys.prefix, name, lease_ms, info, int(letters)]


def gone(state: Connection, keys: PieceKeys, name: str) -> str:
    """Why the savepoint of that name was given up; '' if it was not."""
    key = keys.savepoints
    (found,) = untrusted.read(state, ("HGET", key, name))
    if found is None:
        return ""
    with untrusted.reading(key, "`made until_ms held_bytes`"):
        made_ms = int(bytes(found).split(b" ")[0])
    what = f"savepoint {name} of {keys} was given up: "
    return {
        _GIVEN_UP: f"{what}the savepoints of this slot held more than {MOST_BYTES >> 20} MiB beside the state, and it was the oldest",
        _REWOUND: f"{what}the owner rolled back to an older state",
    }.get(made_ms, "")
