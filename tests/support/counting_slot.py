"""A keyed counter in a slot without servers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.sdk.api import Operator

from tests.support.memory_slot import MemorySlot
from udo_protocol.formats.schema import GROUP_COLUMN, schema_id, to_ipc
from udo_protocol.formats.state_types import StateTypes

EVENTS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
SENT = EVENTS.append(pa.field(GROUP_COLUMN, pa.int32()))
COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


class Count(Operator):
    """A running count per key. The event 13 fails; a timer two seconds after an event answers the count once more."""

    def process(self, event: Any, ctx: Any) -> Any:
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["k"] == 13:
            raise ValueError("thirteen")
        ctx.timer(event["t"] + dt.timedelta(seconds=2))
        yield {"k": event["k"], "n": n}

    def on_timer(self, key: Any, at: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key, "n": 1000 + ctx.state.get("n", 0)}


class CountFrames(Count):
    """The same operator, frame by frame."""

    def process_keys(self, keys: Any, events: pa.RecordBatch, states: Any, ctx: Any) -> Any:
        counts, answers = states.column("n", pa.int64(), 0).to_pylist(), []
        for number, at in zip(keys.index.to_pylist(), events.column("t").to_pylist(), strict=True):
            counts[number] += 1
            answers.append(counts[number])
            keys.timer(number, at + dt.timedelta(seconds=2))
        states.put("n", counts)
        if 13 in keys:
            raise ValueError("thirteen")
        return {"k": events.column("k"), "n": answers}


def slot(
    *,
    commit: str = "epoch",
    policy: Policy | None = None,
    dies: frozenset[int] = frozenset(),
    counting: type[Operator] = Count,
    types: StateTypes | None = None,
) -> MemorySlot:
    keyed, sent = KeyedConfig(("k",), "t", commit=commit), {schema_id(to_ipc(SENT)): SENT}
    return MemorySlot(counting, keyed, (EVENTS, COUNTS), sent, policy=policy, types=types, dies_at=dies.__contains__)
