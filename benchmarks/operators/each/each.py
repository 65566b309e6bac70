"""The stateless counterpart of `count`: the same work per event, and no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator


class Each(Operator):
    """The event with a meaningless number."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One answer for every event."""
        yield {"id": event["id"], "card": event["card"], "n": 1}
