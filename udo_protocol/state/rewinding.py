"""Rollback to a version that cannot read the newer version's state: from a savepoint made before the update, and the input since then.

A pin keeps the input in the log. The restored version starts from the savepoint and processes the input again without answering.
Both are bounded: in time by the node manager's rollback window, in bytes by the log (a pin holds at most half of its bound) and by the
bound of savepoints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from udo_protocol.errors import SlotBroken
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import savepoints
from udo_protocol.state.checkpoints import load_checkpoint

SAVEPOINT = "rollback"
# The node manager drops the savepoint when the window ends. If the node manager is gone for good, the lease ends this much later: long
# enough for a rollback that began within the window.
_LEASE_MORE_MS = 60_000


@dataclass(frozen=True, slots=True)
class KeptState:
    """The savepoint for a rollback, of the version with this digest, kept until `until` (seconds since 1970). It covers the frames up to
    `seq` in the log of server run `run_id`."""

    digest: str
    until: float
    seq: int
    run_id: str


def keep(state: Connection, queue: Connection, keys: SlotKeys, digest: str, until: float, window_ms: int) -> None:
    """Keep the current durable state, of the version with this digest, and the frames after it, for `window_ms`, which end at `until`.
    No instance may own the slot during the call."""
    covers = load_checkpoint(state, keys)
    seq = covers.seq if covers.run_id == queue.run_id else 0
    queue.call("FCALL", "udo_pin", 1, keys.prefix, SAVEPOINT, seq + 1, window_ms)
    about = json.dumps({"digest": digest, "until": until, "seq": seq, "log": queue.run_id})
    savepoints.make(state, keys, SAVEPOINT, window_ms + _LEASE_MORE_MS, about, letters=True)


def kept(state: Connection, keys: SlotKeys) -> KeptState | None:
    """The savepoint for a rollback; None if there is none, or it cannot be read."""
    key = keys.savepoint_info(SAVEPOINT)
    with suppress(SlotBroken):
        (text,) = untrusted.read(state, ("HGET", key, "info"))
        if text is None:
            return None
        info = untrusted.document(text, key)
        with untrusted.reading(key, "digest, until, seq and log"):
            until, seq = untrusted.measure(info["until"], key), untrusted.number(info["seq"], key)
            return KeptState(str(info["digest"]), until, seq, str(info["log"]))
    return None


def gone(state: Connection, keys: SlotKeys) -> str:
    """Why the savepoint was given up before the window ended; '' if it was not."""
    with suppress(SlotBroken):
        return savepoints.gone(state, keys, SAVEPOINT)
    return ""


def possible(state: Connection, keys: SlotKeys, digest: str) -> bool:
    """Whether the savepoint belongs to the version with this digest."""
    found = kept(state, keys)
    return found is not None and found.digest == digest


def pending(state: Connection, keys: SlotKeys, digest: str) -> bool:
    """Whether the version with this digest has to start from the savepoint: the savepoint belongs to it, and the newer version has made
    a checkpoint since, so that the durable state is the newer version's."""
    if not possible(state, keys, digest):
        return False
    then, now = untrusted.read(state, ("HGET", keys.savepoint_info(SAVEPOINT), "ckpt"), ("GET", keys.checkpoint))
    return then is not None and bytes(then) != bytes(now or b"")


def rewind(keys: SlotKeys) -> Sequence[Arg]:
    """The command that replaces the durable state by the savepoint. Only for the transaction of the checkpoint that covers the later input:
    alone, it would leave answered epochs in the log only, where they would be lost with the queue server."""
    return ("FCALL", "udo_rewind", 1, keys.prefix, SAVEPOINT)


def forgetting(keys: SlotKeys, session: str) -> Sequence[Arg]:
    """The command that removes a session from the savepoint, since it has ended."""
    return ("HDEL", keys.savepoint(SAVEPOINT).sessions, session)


def release(queue: Connection, keys: SlotKeys) -> None:
    """Remove the pin that keeps the input since the update."""
    queue.call("FCALL", "udo_pin", 1, keys.prefix, SAVEPOINT, 0, 0)


def forget(state: Connection, queue: Connection, keys: SlotKeys) -> None:
    """Remove the savepoint and the pin: from now on no rollback is possible."""
    savepoints.drop(state, keys, SAVEPOINT)
    release(queue, keys)
