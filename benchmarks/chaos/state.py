"""The durable state of a session, read from the state server after its last END."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from pathlib import Path

from udo_runtime.durable.sessions import load_session
from udo_runtime.state.codec import TIMERS, unpack, unpack_key

from benchmarks.chaos.kinds import Kind, State
from node_manager.servers import access
from udo_protocol.errors import ServerLost
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import group_map, moving
from udo_protocol.state.group_map import SlotGroups

# The state server may be stopped at the moment, for 90 s at most (stops.py), and then killed.
_BACK_S = 150.0
_EPOCH = dt.datetime(1970, 1, 1)


def durable_state(kind: Kind, home: Path, deployment: str, name: str) -> tuple[dict[str, State], set[tuple[dt.datetime, str, str]]]:
    """Return state by key, and timers as (at, kind, key), read while no key group moves. ValueError if a group is in two slots."""
    deadline = time.monotonic() + _BACK_S
    while True:
        try:
            with contextlib.closing(access.connect(home, "state")) as conn:
                if (before := _lying(conn, deployment)) is not None:
                    sessions = [load_session(conn, keys, name) for keys in _slots(conn, deployment)]
                    if before == _lying(conn, deployment):
                        break
        except ServerLost:  # just killed; it comes back
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"key groups of {deployment} moved for {_BACK_S:g} s without a pause")
        time.sleep(0.1)
    numbers = [n for session in sessions for n in session.groups if n >= 0]
    if len(numbers) > len(set(numbers)):
        raise ValueError(f"expected each key group in one slot, got {sorted(numbers)}")
    states: dict[str, State] = {}
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


def _slots(state: Connection, deployment: str) -> list[SlotKeys]:
    """The slots that have sessions."""
    found = (bytes(key).decode().split(":") for key in state.call("KEYS", f"udo:{deployment}:*:sessions"))
    return [SlotKeys(deployment, int(number)) for _, _, number, *rest in found if rest == ["sessions"]]


def _lying(state: Connection, deployment: str) -> SlotGroups | str | None:
    """The slot of each key group; None while some move."""
    first = SlotKeys(deployment, 0)
    return None if moving.noted(state, first) is not None else group_map.load(state, first) or "as at first"
