"""The first half of a ranking over all routes: each part keeps its own ten best, side by side with the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

BEST = 10


class PartialRank(Operator):
    """The ten best routes of a window and a part; of equally frequent ones, those whose name comes first."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """One route's trips in window and part `ctx.key`."""
        ctx.state["best"] = sorted([*ctx.state.get("best", []), [-event["trips"], event["route"]]])[:BEST]
        ctx.timer(event["window_end"])

    def on_timer(self, key: tuple[dt.datetime, int], at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """A later window has counts: those of this one are complete."""
        for trips, route in ctx.state["best"]:
            yield {"window_end": at, "route": route, "trips": -trips}
        ctx.state.clear()
