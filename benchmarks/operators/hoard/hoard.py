"""A keyed operator with state of a given size: a blob per card, and the number of the card's events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Context, Operator


class Hoard(Operator):
    """The event's number within its card, and the version that answered it."""

    def open(self, ctx: Context) -> None:
        """Read the version once, not per event."""
        self.version = int(ctx.version)

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """Number the event; the card's first one leaves a blob of `size` bytes."""
        state = ctx.state
        if not state:
            state["blob"], state["n"] = bytes(event["size"]), 0
        state["n"] += 1
        yield {"id": event["id"], "card": event["card"], "n": state["n"], "version": self.version}
