"""Savepoints: the state as one checkpoint left it, kept while others follow.

A savepoint is a pinned manifest (pieces.py): a copy of the manifests, which say which pieces make up the state, not of the pieces. A
piece is removed when neither the state nor a savepoint names it. A savepoint has a lease. What all savepoints of a slot hold beside the
state is bounded by MOST_BYTES: beyond it the oldest is given up, and its reader gets an error that says so. A savepoint for a rollback
also contains a copy of the dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from udo_protocol.errors import Conflict, ServerLost
from udo_protocol.queue.connection import Connection
from udo_protocol.state import untrusted

# Of pieces that only savepoints name. One savepoint holds at most the state as it was and the changes since its bases, about as much
# again: this is enough for the largest state measured, 1 GB.
MOST_BYTES = 2 << 30
# A reader renews it as it reads; after a reader's death the pieces are held for so long at most.
LEASE_MS = 60_000
# Instead of the time at which it was made.
_GIVEN_UP, _REWOUND = -1, -2


def at(prefix: str, name: str) -> str:
    """The prefix of a savepoint's keys; without a name, that of the state itself."""
    return f"{prefix}savepoint:{name}:" if name else prefix


def make(state: Connection, prefix: str, name: str, lease_ms: int = LEASE_MS, info: str = "", *, letters: bool = False) -> None:
    """Pin the state as it is durable now. Replaces a savepoint of that name."""
    with untrusted.reading(f"{prefix}sessions", "sessions by name"):
        state.call("FCALL", "udo_savepoint", 1, prefix, name, lease_ms, info, int(letters))


def hold(state: Connection, prefix: str, name: str) -> None:
    """Renew the lease; Conflict if it is gone."""
    if state.call("FCALL", "udo_hold_savepoint", 1, prefix, name, LEASE_MS) <= 0:
        raise Conflict(gone(state, prefix, name) or f"savepoint {name} of {prefix} is not there any more: its lease ran out")


def holding(state: Connection, prefix: str, name: str) -> Callable[[], None]:
    """A function to be called often, which renews the lease when that is due."""
    due = 0.0

    def keep() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            hold(state, prefix, name)
            due = now + LEASE_MS / 3000

    return keep


def drop(state: Connection, prefix: str, name: str) -> None:
    """Remove it."""
    state.call("FCALL", "udo_drop_savepoint", 1, prefix, name)


@contextmanager
def made(state: Connection, prefix: str, name: str) -> Iterator[None]:
    """A savepoint that exists while the block runs."""
    make(state, prefix, name)
    try:
        yield
    finally:
        with suppress(ServerLost, OSError):
            drop(state, prefix, name)


def gone(state: Connection, prefix: str, name: str) -> str:
    """Why a savepoint of that name was given up; '' if none was."""
    key = f"{prefix}savepoints"
    (found,) = untrusted.read(state, ("HGET", key, name))
    if found is None:
        return ""
    with untrusted.reading(key, "`made until_ms held_bytes`"):
        made_ms = int(bytes(found).split(b" ")[0])
    what = f"savepoint {name} of {prefix} was given up: "
    return {
        _GIVEN_UP: f"{what}the savepoints of this slot held more than {MOST_BYTES >> 20} MiB beside the state, and it was the oldest",
        _REWOUND: f"{what}the owner rolled back to an older state",
    }.get(made_ms, "")
