"""When to promote the standby of a keyed slot: not while an epoch ends, and not while the standby still processes answered frames.

At the end of an epoch the slot's answers pause until the epoch is on disk. The owner announces that on the queue server; a standby that
has reported ready early announces that it is behind. The promotion waits for both.
"""

from __future__ import annotations

import time

from udo_protocol.errors import SlotBroken
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

# A promotion waits at most this long for the end of an epoch to be on disk, for the first answer of the next epoch, and for a standby
# that is behind: two pauses in succession would make one long gap. _LOOK_MS: the pause between two checks.
ON_DISK_MS, NEXT_MS, BEHIND_MS, _LOOK_MS = 500, 50, 500, 2


def turning(queue: Connection, keys: SlotKeys, within_ms: int) -> None:
    """Announce, as the owner, that an epoch ends, for at most `within_ms`; 0: the next epoch has begun."""
    _say(queue, keys.turning, within_ms)


def behind(queue: Connection, keys: SlotKeys, within_ms: int) -> None:
    """Announce, as a standby that reported ready early, that it still processes answered frames, for at most `within_ms`; 0: caught up."""
    _say(queue, keys.behind, within_ms)


def _say(queue: Connection, key: str, within_ms: int) -> None:
    if within_ms:
        queue.call("SET", key, 1, "PX", within_ms)
    else:
        queue.call("DEL", key)


def await_turn(queue: Connection, keys: SlotKeys) -> None:
    """Wait until no epoch is ending and the standby is not behind; at most ON_DISK_MS."""
    until = time.monotonic() + ON_DISK_MS / 1000
    while time.monotonic() < until:
        try:
            (busy,) = untrusted.read(queue, ("EXISTS", keys.turning, keys.behind))
        except SlotBroken:  # the keys are corrupted: promote without waiting
            return
        if not busy:
            return
        time.sleep(_LOOK_MS / 1000)
