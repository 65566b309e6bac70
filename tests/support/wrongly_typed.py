"""Keyed counters whose events can make them leave state of a wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from udo_runtime.sdk.api import Operator


class Wrong(Operator):
    """Counts; an event `float` leaves a float in the state, `late` leaves a text after the answer."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["do"] == "float":
            ctx.state["n"] = float(n)
        yield {"n": n}
        if event["do"] == "late":
            ctx.state["n"] = str(n)

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {"n": str(old["n"])}


class WrongFrames(Wrong):
    """The same operator, frame by frame."""

    def process_keys(self, keys: Any, events: pa.RecordBatch, states: Any, ctx: Any) -> Any:
        answers = []
        for number, do in zip(keys.index.to_pylist(), events.column("do").to_pylist(), strict=True):
            n = states[number]["n"] = states[number].get("n", 0) + 1
            if do != "count":
                states[number]["n"] = float(n)
            answers.append(n)
        return {"n": answers}
