"""A keyed query that is recorded, and the slot's counters meanwhile."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

from node_manager.servers import access
from tests.cli.conftest import Shell
from tests.node_manager.conftest import Daemon
from tests.support.attempt import Attempt
from tests.support.recording import replayed
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import ANSWER
from udo_protocol.queue.keys import SlotKeys

P = SlotKeys("d", 0)
# Counts per key, and answers the negative count a minute after a key's first event.
COUNT = """
import datetime as dt
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + {step}
        if n == 1:
            ctx.timer(event["t"] + dt.timedelta(minutes=1))
        yield {{"k": ctx.key, "n": n}}
    def on_timer(self, key, at, ctx):
        yield {{"k": key, "n": -ctx.state["n"]}}
"""
KEYED: dict[str, Any] = {
    "entry": "op:Count",
    "input": {"a": "int64", "t": "timestamp[us]"},
    "output": {"k": "int64", "n": "int64"},
    "key": ["a"],
    "event_time": {"column": "t"},
}
MINUTE = dt.timedelta(minutes=1)
T0 = dt.datetime(2030, 1, 1)


def queue(daemon: Daemon) -> contextlib.closing[Connection]:
    """A connection to the queue server with the node manager's rights."""
    return contextlib.closing(access.connect(daemon.home, "queue"))


def stats(daemon: Daemon) -> slot.SlotStats:
    """The counters of the slot."""
    with queue(daemon) as conn:
        return slot.slot_stats(conn, P)


def by_lane(udo: Shell, operator: Path, file: Path, *args: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The outcome of a replay, and the answered values by lane."""
    outcome, rows = replayed(udo, operator, file, *args)
    lanes: dict[str, list[Any]] = {}
    for row in rows:
        lanes.setdefault(row["__udo_lane"], []).append(tuple(v for k, v in row.items() if not k.startswith("__udo_")))
    return outcome, lanes


class Query:
    """Epochs of one session, and the answers that were served, by lane."""

    def __init__(self, daemon: Daemon, session: str) -> None:
        self._daemon, self._session = daemon, session
        self._attempts = 0
        self.served: dict[str, list[Any]] = {}

    def attempt(self, epoch: int) -> Attempt:
        """Begin a new attempt at an epoch."""
        self._attempts += 1
        return Attempt.at_node(self._daemon.api, "d", self._session, epoch, self._attempts)

    def collect(self, attempt: Attempt) -> None:
        """Keep the answers to it."""
        frames = attempt.frames()
        assert {f.header.kind for f in frames} == {ANSWER}
        rows = [tuple(r.values()) for f in frames for r in f.batch(attempt.output).to_pylist()]
        self.served.setdefault(attempt.lane.lane, []).extend(rows)

    def run(self, epoch: int, *frames: list[int]) -> None:
        """Run a whole epoch, which takes a minute of event time."""
        attempt = self.attempt(epoch)
        for keys in frames:
            attempt.send(keys, [T0 + epoch * MINUTE] * len(keys))
        attempt.end()
        self.collect(attempt)
        attempt.lane.close()
        attempt.close()
