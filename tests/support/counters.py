"""Keyed counters as real processes, and attempts of queries on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.support.attempt import Attempt
from udo_protocol.formats.schema import GROUP_COLUMN, to_ipc
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue import lane_end

A = TypeVar("A", bound=Attempt)
Start = Callable[..., Process]
EVENTS = pa.schema([("k", pa.string()), ("t", pa.timestamp("us"))])
SENT = EVENTS.append(pa.field(GROUP_COLUMN, pa.int32()))
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["k"] == "boom": raise ValueError("boom")
        yield {"k": event["k"], "n": n}
"""
TIMERS = """
import datetime as dt
from udo_runtime import Operator
class Quiet(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.timer(event["t"] + dt.timedelta(seconds=10))
        if event["k"].startswith("x"): ctx.expire(event["t"] + dt.timedelta(seconds=5))
    def on_timer(self, key, at, ctx):
        if "n" in ctx.state: yield {"k": key, "n": ctx.state.pop("n")}
"""


def an_attempt(servers: Servers, epoch: int, attempt: int, partition: int = 0, run: int = 1, session: str = "q", **header: Any) -> Attempt:
    """An attempt at the slot P, which no node manager manages."""
    return attempted(Attempt, servers, epoch, attempt, partition, run, session, **header)


def attempted(
    kind: type[A], servers: Servers, epoch: int, attempt: int, partition: int = 0, run: int = 1, session: str = "q", **header: Any
) -> A:
    """The same, of another class."""
    lane = lane_end.LaneEnd(servers.queue(), P, f"{session}.{run}.{epoch}.{partition}.{attempt}")
    lane.open(to_ipc(SENT))
    label = Label(run=run, epoch=epoch, attempt=attempt)
    return kind(lane, (EVENTS, COUNTS), session=session, partition=partition, label=label, **header)


def counter(start: Start, source: str = COUNT, entry: str = "op:Count", promote: bool = True, **keyed: Any) -> Process:
    return start(source, entry, promote, schemas=(EVENTS, COUNTS), keyed={"columns": ["k"], **keyed})
