"""The keyed operator of the state benchmark: numbers each card's events, per event and exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator


class Count(Operator):
    """A running count per card."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """The event with its number."""
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "card": event["card"], "n": n}
