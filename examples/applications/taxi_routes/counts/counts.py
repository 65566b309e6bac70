"""A sliding window: `ctx.state` has the times of a route's trips; a timer every five minutes counts those of the last 30 minutes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

WINDOW, EVERY = dt.timedelta(minutes=30), dt.timedelta(minutes=5)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Counts(Operator):
    """The trips of route `ctx.key` in each window that has any."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """Add a trip to the six windows that end within 30 minutes after it."""
        at = event["ended_at"]
        if ctx.watermark is not None and at < ctx.watermark:
            return  # it is late: a window that it belongs to may be closed
        ctx.state["trips"] = [*ctx.state.get("trips", []), at]
        end = at - (at - EPOCH) % EVERY + EVERY
        for n in range(WINDOW // EVERY):
            ctx.timer(end + n * EVERY)

    def on_timer(self, key: str, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called when event time has passed the end of a window."""
        trips = ctx.state["trips"]
        yield {"window_end": at, "route": key, "trips": sum(at - WINDOW <= t < at for t in trips)}
        if later := [t for t in trips if t >= at + EVERY - WINDOW]:
            ctx.state["trips"] = later
        else:
            ctx.state.clear()
