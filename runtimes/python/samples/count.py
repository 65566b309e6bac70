"""Answers each event with the number of events of its key so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from udo_runtime import Context, Operator


class Count(Operator):
    """A key's state, the same in all languages: {"n": 3}."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterable[dict[str, Any]]:
        """Yield the event and its number."""
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {**event, "n": n}
