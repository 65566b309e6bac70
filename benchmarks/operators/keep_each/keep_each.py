"""The filter of the throughput benchmark, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

THRESHOLD = 500.0


class KeepEach(Operator):
    """The events with an amount above the threshold."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """Return the event, or nothing."""
        if event["amount"] > THRESHOLD:
            yield event
