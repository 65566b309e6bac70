"""The second half of the ranking: the ten best of the routes that the parts pass on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

BEST = 10


class GlobalRank(Operator):
    """The ten best routes of a window, ranked; equally frequent ones by name."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """One route of window `ctx.key`."""
        ctx.state["best"] = sorted([*ctx.state.get("best", []), [-event["trips"], event["route"]]])[:BEST]
        ctx.timer(event["window_end"])

    def on_timer(self, key: dt.datetime, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called when the parts have sent a later window: this one is complete."""
        for rank, (trips, route) in enumerate(ctx.state["best"], start=1):
            yield {"window_end": at, "rank": rank, "route": route, "trips": -trips}
        ctx.state.clear()
