"""Answers the number of events of a key's session, once the key has had no event for half a minute of event time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from udo_runtime import Context, Operator

GAP = dt.timedelta(seconds=30)


class Sessionise(Operator):
    """A key's state: {"n": number of events, "last": the latest one's time}."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterable[dict[str, Any]]:
        """Count the event; answers nothing yet."""
        state, at = ctx.state, event["t"]
        state["n"] = state.get("n", 0) + 1
        if "last" not in state or at > state["last"]:
            state["last"] = at
            ctx.timer(at + GAP)
        return ()

    def on_timer(self, key: Any, at: dt.datetime, ctx: Context) -> Iterable[dict[str, Any]]:
        """Yield the session, if no event has come since."""
        if "last" in ctx.state and at >= ctx.state["last"] + GAP:
            yield {"k": key, "n": ctx.state["n"], "ended": ctx.state["last"]}
            ctx.state.clear()
