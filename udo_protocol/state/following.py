"""A follower of a keyed slot: told of every checkpoint while it lasts, so that it has the state in memory when it is promoted.

The owner puts what it writes into the follower's journal, in the step that writes it. A follower first announces itself and
then reads the state, in many steps: what it reads may be newer than where it began, but no entry of the journal is missing,
and entries hold whole values, so that applying one twice does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from udo_protocol.errors import Fenced, SlotBroken
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state import untrusted

# A follower that is gone costs the owner a journal for so long; renewed after a third of it.
LEASE_MS = 30_000
_ALL = 1 << 30
# An epoch that ends stops the slot's answers until it is on disk, and the next one begins a little later. A promotion waits for
# that, so long at most: the two together would make one long gap. A follower is behind for less.
ON_DISK_MS, NEXT_MS, BEHIND_MS, _LOOK_MS = 500, 50, 500, 2
# Epochs often end in a rhythm. An end that is expected so soon, or so recently, as a share of an epoch, is awaited too.
_EXPECTED_SHARE, _EXPECTED_S = 0.03, 0.1


def begin(state: Connection, prefix: str, name: str) -> None:
    """From here on every checkpoint is told to `name`; a former follower is not told any more."""
    state.transaction([("DEL", f"{prefix}journal:{name}"), ("SET", f"{prefix}follower", name, "PX", LEASE_MS)])


def renew(state: Connection, prefix: str, name: str) -> None:
    """Keep the lease; Fenced if it ran out or somebody else follows: entries may be missing."""
    follower = state.call("GET", f"{prefix}follower")
    if not _is(follower, name) or not state.call("PEXPIRE", f"{prefix}follower", LEASE_MS):
        raise Fenced(f"{name} does not follow {prefix} any more: its lease ran out, a newer instance follows, or the owner went back")


def _is(follower: Any, name: str) -> bool:
    return follower is not None and bytes(follower) == name.encode()


def ending(prefix: str, name: str) -> Sequence[Arg]:
    """The command after which nothing more is told to `name`; whoever follows now is not disturbed."""
    return ("FCALL", "udo_unfollow", 1, prefix, name)


def end(state: Connection, prefix: str, name: str) -> None:
    """Nothing more is to be told to `name`."""
    state.call(*ending(prefix, name))


def turning(queue: Connection, prefix: str, within_ms: int, at: float | None = None) -> None:
    """The owner says that an epoch ends, for so long at most; 0: the next one has begun. `at`: since when it ends (s since 1970), told
    once per epoch."""
    ends = [("LPUSH", f"{prefix}ends", f"{at:.3f}"), ("LTRIM", f"{prefix}ends", 0, 1)] if at is not None else []
    ending = ("SET", f"{prefix}turning", 1, "PX", within_ms) if within_ms else ("DEL", f"{prefix}turning")
    queue.transaction([*ends, ending])


def behind(queue: Connection, prefix: str, within_ms: int) -> None:
    """A follower that said it is ready says that some answered frames are still to be tried, for so long at most; 0: none are."""
    if within_ms:
        queue.call("SET", f"{prefix}behind", 1, "PX", within_ms)
    else:
        queue.call("DEL", f"{prefix}behind")


def await_turn(queue: Connection, prefix: str) -> None:
    """Return when no epoch is just ending or expected to and the follower is not behind, after 0.5 s at the latest."""
    until = time.monotonic() + ON_DISK_MS / 1000
    looks: list[Sequence[Arg]] = [("EXISTS", f"{prefix}turning", f"{prefix}behind"), ("LRANGE", f"{prefix}ends", 0, 1)]
    while time.monotonic() < until:
        try:
            busy, ends = untrusted.read(queue, *looks)
            expected = _expected([untrusted.measure(at, f"{prefix}ends") for at in ends], time.time())
        except SlotBroken:  # nothing to go by
            return
        if not busy and not expected:
            return
        time.sleep(_LOOK_MS / 1000)


def _expected(ends: Sequence[float], now: float) -> bool:
    """Whether the next epoch ends about `now`, if it lasts as long as the one before; `ends`: when the last ones did, newest first."""
    if len(ends) < 2:
        return False
    lasts = ends[0] - ends[1]
    return abs(ends[0] + lasts - now) < min(lasts * _EXPECTED_SHARE, _EXPECTED_S)


def tell(prefix: str, name: str, entries: Sequence[bytes]) -> list[Sequence[Arg]]:
    """The owner's commands for its transaction."""
    key = f"{prefix}journal:{name}"
    return [("RPUSH", key, *entries), ("PEXPIRE", key, LEASE_MS)] if entries else []


def told(state: Connection, prefix: str, name: str) -> tuple[Sequence[bytes], bool]:
    """Take what the journal holds: whole checkpoints, oldest first. And whether `name` has followed until now: else some are missing,
    or they go on from a state that it does not have."""
    entries, follower = state.transaction([("LPOP", f"{prefix}journal:{name}", _ALL), ("GET", f"{prefix}follower")])
    return entries or (), _is(follower, name)
