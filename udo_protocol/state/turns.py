"""When to promote the standby of a keyed slot: not while an epoch is just ending, and not while the standby is behind.

An epoch that ends stops the slot's answers until it is on disk. The owner says so on the queue server, and so does a standby that
has reported early; whoever promotes waits for both, and for an end that is expected from the rhythm of the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from udo_protocol.errors import SlotBroken
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state import untrusted

# An epoch that ends stops the slot's answers until it is on disk, and the next one begins a little later. A promotion waits for
# that, so long at most: the two together would make one long gap. A standby is behind for less.
ON_DISK_MS, NEXT_MS, BEHIND_MS, _LOOK_MS = 500, 50, 500, 2
# Epochs often end in a rhythm. An end that is expected so soon, or so recently, as a share of an epoch, is awaited too.
_EXPECTED_SHARE, _EXPECTED_S = 0.03, 0.1


def turning(queue: Connection, prefix: str, within_ms: int, at: float | None = None) -> None:
    """The owner says that an epoch ends, for so long at most; 0: the next one has begun. `at`: since when it ends (s since 1970), told
    once per epoch."""
    ends = [("LPUSH", f"{prefix}ends", f"{at:.3f}"), ("LTRIM", f"{prefix}ends", 0, 1)] if at is not None else []
    ending = ("SET", f"{prefix}turning", 1, "PX", within_ms) if within_ms else ("DEL", f"{prefix}turning")
    queue.transaction([*ends, ending])


def behind(queue: Connection, prefix: str, within_ms: int) -> None:
    """A standby that said it is ready says that some answered frames are still to be tried, for so long at most; 0: none are."""
    if within_ms:
        queue.call("SET", f"{prefix}behind", 1, "PX", within_ms)
    else:
        queue.call("DEL", f"{prefix}behind")


def await_turn(queue: Connection, prefix: str) -> None:
    """Return when no epoch is just ending or expected to and the standby is not behind, after 0.5 s at the latest."""
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
