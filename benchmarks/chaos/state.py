"""What is durable of a session, read from the state server after its last END."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from benchmarks.chaos.node import ChaosNode
from udo_protocol.keys import prefix
from udo_runtime.durable import load_session
from udo_runtime.groups import TIMERS, unpack
from udo_runtime.keyed import unpack_key

_EPOCH = dt.datetime(1970, 1, 1)


def durable_state(
    node: ChaosNode, deployment: str, name: str
) -> tuple[dict[str, dict[str, Any]], set[tuple[dt.datetime, str, str]]]:
    """State by key, and timers as (at, kind, key)."""
    with contextlib.closing(node.connect("state")) as conn:
        session = load_session(conn, prefix(deployment, 0), name)
    states: dict[str, dict[str, Any]] = {}
    timers: set[tuple[dt.datetime, str, str]] = set()
    for number, group in session.groups.items():
        if number < 0:  # highest event times
            continue
        for key, raw in group.values.items():
            value = unpack(raw)
            if key == TIMERS:
                timers |= {(_EPOCH + dt.timedelta(microseconds=at), kind, unpack_key(k)) for kind in value for at, k in value[kind]}
            else:
                states[unpack_key(key)] = {n: v for n, v in value.items() if not n.startswith("\0")}
    return states, timers
