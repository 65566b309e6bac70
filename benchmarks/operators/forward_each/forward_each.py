"""Answers with its input, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator


class ForwardEach(Operator):
    """Every event, unchanged."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """Return the event."""
        yield event
