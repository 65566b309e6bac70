"""Rollback to a version that cannot read what a newer one writes: a savepoint from before the update, and the input since.

The input is held in the log by a pin; a version that is rolled back to starts from the savepoint and processes the input again without
answering. Both are bounded: in time by who made them, in bytes by the log (a pin holds at most half of its bound) and by what
savepoints may hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from udo_protocol.errors import SlotBroken
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state import savepoints, untrusted
from udo_protocol.state.checkpoints import load_checkpoint

SAVEPOINT = "rollback"
# Who made it gives it up in time. Were that one gone for ever, the lease would end: so much later, in which one that is under way ends.
_LEASE_MORE_MS = 60_000


@dataclass(frozen=True, slots=True)
class KeptState:
    """What is kept: `info` of who kept it, and the frames that state covers: up to `seq` of the log of the queue server run `run_id`."""

    info: Mapping[str, Any]
    seq: int
    run_id: str


def keep(state: Connection, queue: Connection, prefix: str, info: Mapping[str, Any], window_ms: int) -> None:
    """Keep the state as it is durable now, and the frames behind it; nobody may own the slot meanwhile."""
    covers = load_checkpoint(state, prefix)
    seq = covers.seq if covers.run_id == queue.run_id else 0
    queue.call("FCALL", "udo_pin", 1, prefix, SAVEPOINT, seq + 1, window_ms)
    about = json.dumps({**info, "seq": seq, "log": queue.run_id})
    savepoints.make(state, prefix, SAVEPOINT, window_ms + _LEASE_MORE_MS, about, letters=True)


def kept(state: Connection, prefix: str) -> KeptState | None:
    """What is kept, if anything that can be used."""
    key = f"{prefix}savepoint:{SAVEPOINT}"
    with suppress(SlotBroken):
        (text,) = untrusted.read(state, ("HGET", key, "info"))
        if text is None:
            return None
        info = untrusted.document(text, key)
        with untrusted.reading(key, "digest, until, seq and log"):
            known = {"digest": str(info["digest"]), "until": untrusted.measure(info.get("until", 0), key)}
            return KeptState({**info, **known}, untrusted.number(info["seq"], key), str(info["log"]))
    return None


def gone(state: Connection, prefix: str) -> str:
    """Why it was given up before its time; '' if it was not."""
    with suppress(SlotBroken):
        return savepoints.gone(state, prefix, SAVEPOINT)
    return ""


def possible(state: Connection, prefix: str, digest: str) -> bool:
    """Whether the version of that digest is the one whose state is kept."""
    found = kept(state, prefix)
    return found is not None and bool(found.info["digest"] == digest)


def pending(state: Connection, prefix: str, digest: str) -> bool:
    """Whether the version of that digest, if it is to serve now, has to start from what was kept: the durable state is still the
    newer version's, which has made a checkpoint since."""
    if not possible(state, prefix, digest):
        return False
    then, now = untrusted.read(state, ("HGET", f"{prefix}savepoint:{SAVEPOINT}", "ckpt"), ("GET", f"{prefix}ckpt"))
    return then is not None and bytes(then) != bytes(now or b"")


def rewind(prefix: str) -> Sequence[Arg]:
    """The command that makes the durable state what was kept. Only within the checkpoint that covers the input since: alone, it
    would leave epochs that have been answered to the log, which goes with the queue server."""
    return ("FCALL", "udo_rewind", 1, prefix, SAVEPOINT)


def forgetting(prefix: str, session: str) -> Sequence[Arg]:
    """The command after which a rollback does not bring that session back: it is over."""
    return ("HDEL", savepoints.at(prefix, SAVEPOINT) + "sessions", session)


def release(queue: Connection, prefix: str) -> None:
    """The input since is not needed any more."""
    queue.call("FCALL", "udo_pin", 1, prefix, SAVEPOINT, 0, 0)


def forget(state: Connection, queue: Connection, prefix: str) -> None:
    """No rollback is possible any more: what was kept for one is removed."""
    savepoints.drop(state, prefix, SAVEPOINT)
    release(queue, prefix)
