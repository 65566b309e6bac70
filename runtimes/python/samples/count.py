"""Answers each event with how many of its key there have been."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from udo_runtime import Context, Operator


class Count(Operator):
    """The state of a key, as any language may have left it: {"n": 3}."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterable[dict[str, Any]]:
        """The event, and its number."""
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {**event, "n": n}
