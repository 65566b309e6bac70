"""State kept from before an update, so that a version which cannot read what the new one writes can come back.

The input since then is held in the log by a pin; a version that goes back starts from what was kept and processes it again
without answering. Both are bounded: in time by who keeps them, in bytes by the log (a pin holds at most half of its bound).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from udo_protocol.checkpoints import load_checkpoint
from udo_protocol.connection import Connection
from udo_protocol.slot import as_int

_PIN = "rollback"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept: `info` of who kept it, and the frames that state covers: up to `seq` of the queue server's run `incarnation`."""

    info: Mapping[str, Any]
    seq: int
    incarnation: str


def keep(state: Connection, queue: Connection, prefix: str, info: Mapping[str, Any], window_ms: int) -> None:
    """Keep the state as it is durable now, and the frames behind it; nobody may own the slot meanwhile."""
    covers = load_checkpoint(state, prefix)
    first = covers.seq + 1 if covers.incarnation == queue.run_id else 1
    queue.call("FCALL", "udo_pin", 1, prefix, _PIN, first, window_ms)
    state.call("FCALL", "udo_keep", 1, prefix, json.dumps(info))


def kept(state: Connection, prefix: str) -> Kept | None:
    """What is kept, if anything."""
    info, ckpt = state.call("HMGET", f"{prefix}kept", "info", "ckpt")
    if info is None:
        return None
    seq, _, incarnation = bytes(ckpt).decode().partition(" ")
    return Kept(json.loads(bytes(info)), int(seq or 0), incarnation)


def retained(queue: Connection, prefix: str, found: Kept) -> bool:
    """Whether all frames behind it are still in the log."""
    first = found.seq + 1 if found.incarnation == queue.run_id else 1
    return as_int(queue.call("GET", f"{prefix}base"), 1) <= first


def rewind(state: Connection, queue: Connection, prefix: str) -> None:
    """Make the durable state what was kept, if anything is. The frames behind it stay until a checkpoint covers them."""
    state.call("FCALL", "udo_rewind", 1, prefix)
    _release(queue, prefix)


def _release(queue: Connection, prefix: str) -> None:
    queue.call("FCALL", "udo_pin", 1, prefix, _PIN, 0, 0)


def forget(state: Connection, queue: Connection, prefix: str) -> None:
    """Nobody will come back."""
    state.call("FCALL", "udo_forget_kept", 1, prefix)
    _release(queue, prefix)
