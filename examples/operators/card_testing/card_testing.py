"""A keyed operator: finds small payments of a card within ten minutes, then a large one. Exact whatever fails meanwhile.

Its memory is `ctx.state`, which the platform keeps per card and query, exactly once with Spark's epochs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

SMALL, LARGE = 2.0, 100.0
ENOUGH = 3  # small payments
WINDOW = dt.timedelta(minutes=10)


class CardTesting(Operator):
    """An alert for a large payment that follows small ones; a "quiet" answer if none follows."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One payment of card `ctx.key`."""
        at, amount = event["timestamp"], event["amount"]
        small = [t for t in ctx.state.get("small", []) if at - t <= WINDOW]
        if amount <= SMALL:
            ctx.state["small"] = [*small, at]
            if len(small) + 1 == ENOUGH:
                ctx.timer(at + WINDOW)  # on_timer is called when event time has passed it
        elif amount >= LARGE and len(small) >= ENOUGH:
            ctx.state.clear()
            yield {"card_id": ctx.key, "timestamp": at, "kind": "alert", "small_payments": len(small)}
        if ctx.state:
            ctx.expire(at + 2 * WINDOW)  # frees the state of a card that pays no more

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called ten minutes after the third small payment."""
        if len(ctx.state.get("small", [])) >= ENOUGH:
            yield {"card_id": key, "timestamp": at, "kind": "quiet", "small_payments": len(ctx.state["small"])}
            ctx.state.clear()
