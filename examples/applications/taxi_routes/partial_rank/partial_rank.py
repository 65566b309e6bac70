"""The first half of a ranking over all routes: parts find their own ten best in parallel."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

BEST = 10


class PartialRank(Operator):
    """The ten best routes of a window and a part; equally frequent ones by name."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """One route's trips in window and part `ctx.key`."""
        ctx.state["best"] = sorted([*ctx.state.get("best", []), [-event["trips"], event["route"]]])[:BEST]
        ctx.timer(event["window_end"])

    def on_timer(self, key: tuple[dt.datetime, int], at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called when a later window has counts: those of this one are complete."""
        for trips, route in ctx.state["best"]:
            yield {"window_end": at, "route": route, "trips": -trips}
        ctx.state.clear()
