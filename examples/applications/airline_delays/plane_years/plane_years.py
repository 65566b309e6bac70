"""Operator 2: state by two columns. It answers every flight with the sums so far; the last answer for a key has the year's sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator


class PlaneYears(Operator):
    """Flights, delayed flights and minutes of delay by plane and year."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One flight; ctx.key is (plane, year)."""
        plane, year = ctx.key
        state = ctx.state
        state["flights"] = state.get("flights", 0) + 1
        state["delayed"] = state.get("delayed", 0) + (event["delay_min"] > 0)
        state["delay_min"] = state.get("delay_min", 0) + event["delay_min"]
        yield {"plane": plane, "year": year, **state}
