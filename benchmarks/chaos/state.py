"""What is durable of a session, read from the state server after its last END."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from pathlib import Path
from typing import Any

from udo_runtime.execution.timers import unpack_key
from udo_runtime.state.codec import TIMERS, unpack
from udo_runtime.state.durable import load_session

from benchmarks.chaos.kinds import Kind
from node_manager.servers import access
from udo_protocol.errors import ServerLost
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.queue.keys import prefix

# The state server may just be stopped, for 90 s at most (stops.py), and killed at the end of that.
_BACK_S = 150.0
_EPOCH = dt.datetime(1970, 1, 1)


def durable_state(
    kind: Kind, home: Path, deployment: str, name: str
) -> tuple[dict[str, dict[str, Any]], set[tuple[dt.datetime, str, str]]]:
    """State by key, and timers as (at, kind, key)."""
    deadline = time.monotonic() + _BACK_S
    while True:
        try:
            with contextlib.closing(access.connect(home, "state")) as conn:
                prefixes = [p for n in range(MOST_SLOTS) if conn.call("EXISTS", (p := prefix(deployment, n)) + "sessions")]
                sessions = [load_session(conn, p, name) for p in prefixes]
                break
        except ServerLost:  # killed just now; it comes back
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    states: dict[str, dict[str, Any]] = {}
    timers: set[tuple[dt.datetime, str, str]] = set()
    for number, group in (item for session in sessions for item in session.groups.items()):
        if number < 0:  # highest event times
            continue
        for key, raw in group.values.items():
            value = unpack(raw)
            if key == TIMERS:
                timers |= {
                    (_EPOCH + dt.timedelta(microseconds=at), "t", unpack_key(k)) for k, times in value.get("t", {}).items() for at in times
                }
                timers |= {(_EPOCH + dt.timedelta(microseconds=at), "x", unpack_key(k)) for k, at in value.get("x", {}).items()}
            else:
                states[key] = {n: v for n, v in kind.plain(value).items() if not n.startswith("\0")}
    return states, timers
