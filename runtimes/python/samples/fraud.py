"""Flags card payments of unusual value, event by event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from udo_runtime import Context, Operator

LIMIT = 100.0


class Fraud(Operator):
    """Flags payments above LIMIT; a payment without a value is not flagged."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterable[dict[str, Any]]:
        """Yield one answer for each event."""
        value = event["value"]
        yield {"id": event["id"], "flagged": value is not None and value > LIMIT}
