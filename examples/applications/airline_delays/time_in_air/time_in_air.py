"""Operator 3: times in the state. The state does not depend on the order of the flights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

MINUTE = dt.timedelta(minutes=1)


class TimeInAir(Operator):
    """Time in the air by plane and year, so far."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One flight; ctx.key is (plane, year)."""
        plane, year = ctx.key
        departed, landed = event["departed"], event["departed"] + event["air_min"] * MINUTE
        state = ctx.state
        state["flights"] = state.get("flights", 0) + 1
        state["air_min"] = state.get("air_min", 0) + event["air_min"]
        state["first"] = min(state.get("first", departed), departed)
        state["last"] = max(state.get("last", landed), landed)
        share = min(state["air_min"] / max((state["last"] - state["first"]) // MINUTE, 1), 1.0)
        yield {"plane": plane, "year": year, "flights": state["flights"], "air_min": state["air_min"], "share": share}
