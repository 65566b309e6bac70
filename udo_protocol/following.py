"""A follower of a keyed slot: told of every checkpoint while it lasts, so that it has the state in memory when it is promoted.

The owner puts what it writes into the follower's journal, in the step that writes it. A follower first announces itself and
then reads the state at leisure: what it reads may be newer than where it began, but no entry of the journal is missing, and
entries hold whole values, so that applying one twice does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from udo_protocol.connection import Arg, Connection
from udo_protocol.errors import Fenced

# A follower that is gone costs the owner a journal for so long; renewed after a third of it.
LEASE_MS = 30_000
_ALL = 1 << 30
# An epoch that ends stops the slot's answers until it is on disk, and the next one begins a little later. A promotion waits for
# that, so long at most: the two together would make one long gap. A follower is behind for less.
ON_DISK_MS, NEXT_MS, BEHIND_MS, _LOOK_MS = 500, 50, 500, 2


def begin(state: Connection, prefix: str, name: str) -> None:
    """From here on every checkpoint is told to `name`; a former follower is not told any more."""
    state.transaction([("DEL", f"{prefix}journal:{name}"), ("SET", f"{prefix}follower", name, "PX", LEASE_MS)])


def renew(state: Connection, prefix: str, name: str) -> None:
    """Keep the lease; Fenced if it ran out or somebody else follows: entries may be missing."""
    if not follows(state, prefix, name) or not state.call("PEXPIRE", f"{prefix}follower", LEASE_MS):
        raise Fenced(f"{name} does not follow {prefix} any more: its lease ran out, or a newer instance follows")


def follows(state: Connection, prefix: str, name: str) -> bool:
    """Whether `name` has followed until now, and so was told of everything."""
    follower = state.call("GET", f"{prefix}follower")
    return follower is not None and bytes(follower).decode() == name


def ending(prefix: str, name: str) -> Sequence[Arg]:
    """The command after which nothing more is told to `name`; whoever follows now is not disturbed."""
    return ("FCALL", "udo_unfollow", 1, prefix, name)


def end(state: Connection, prefix: str, name: str) -> None:
    """Nothing more is to be told to `name`."""
    state.call(*ending(prefix, name))


def turning(queue: Connection, prefix: str, within_ms: int) -> None:
    """The owner says that an epoch ends, for so long at most; 0: the next one has begun."""
    if within_ms:
        queue.call("SET", f"{prefix}turning", 1, "PX", within_ms)
    else:
        queue.call("DEL", f"{prefix}turning")


def behind(queue: Connection, prefix: str, within_ms: int) -> None:
    """A follower that said it is ready says that some answered frames are still to be tried, for so long at most; 0: none are."""
    if within_ms:
        queue.call("SET", f"{prefix}behind", 1, "PX", within_ms)
    else:
        queue.call("DEL", f"{prefix}behind")


def await_turn(queue: Connection, prefix: str) -> None:
    """Return when no epoch is just ending and the follower is not behind, after 0.5 s at the latest."""
    until = time.monotonic() + ON_DISK_MS / 1000
    while queue.call("EXISTS", f"{prefix}turning", f"{prefix}behind") and time.monotonic() < until:
        time.sleep(_LOOK_MS / 1000)


def tell(prefix: str, name: str, entries: Sequence[bytes]) -> list[Sequence[Arg]]:
    """The owner's commands for its transaction."""
    key = f"{prefix}journal:{name}"
    return [("RPUSH", key, *entries), ("PEXPIRE", key, LEASE_MS)] if entries else []


def told(state: Connection, prefix: str, name: str) -> Sequence[bytes]:
    """Take what the journal holds: whole checkpoints, oldest first."""
    return state.call("LPOP", f"{prefix}journal:{name}", _ALL) or ()
