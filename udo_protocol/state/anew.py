"""Replaces the log of a slot whose keys an operator has corrupted by an empty one, as if the queue server had been lost for this slot.

Unanswered frames and all lanes are lost: each attempt fails with LaneExpired and is retried on the state of the newest checkpoint, which
stays. Instances that were attached to the slot are fenced.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from udo_protocol.errors import Fenced, SlotBroken
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import next_token
from udo_protocol.state import checkpoints, rewinding


def begin(state: Connection, queue: Connection, keys: SlotKeys, *, keyed: bool) -> None:
    """Replace the log of the slot by an empty one. Fenced if an instance with a newer token owns the slot."""
    token = next_token(state, keys)
    _fenced_or(state, keys, "udo_promote", token)
    # The new log begins after every number that the old one can have used, since dead letters and cuts refer to old frames by number.
    cuts = [seq for seq, run in checkpoints.cut(state, keys).values() if run == queue.run_id]
    seq = max([time.time_ns() // 1000, *(last + 1 for last in cuts)])
    if keyed:
        with suppress(SlotBroken):
            rewinding.forget(state, queue, keys)  # the input since the update is lost, so no rollback is possible
        covers: list[Sequence[Arg]] = [("SET", keys.checkpoint, f"{seq} {queue.run_id}"), ("DEL", keys.riding)]
        checkpoints.amend(checkpoints.OwnedState(state, keys, token), covers)
    _fenced_or(queue, keys, "udo_anew", token, seq)


def _fenced_or(conn: Connection, keys: SlotKeys, function: str, token: int, *more: int) -> None:
    status, value = conn.call("FCALL", function, 1, keys.prefix, token, *more)
    if status == b"FENCED":
        raise Fenced(f"token {token} is older than the owner {value} of {keys}")
