"""An operator per event: easier to write than a vectorised one, and slower. Its only state is the instance's memory.

That memory is lost with the instance: good enough for a hint, not for an answer that must be exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from udo_runtime import Operator

REMEMBERED_CARDS = 100_000  # bounds the instance's memory
HASTY_S = 60.0


class Velocity(Operator):
    """Seconds between two payments of a card."""

    def open(self, ctx: Any) -> None:
        """Called once per instance."""
        self.last: OrderedDict[int, datetime] = OrderedDict()

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One answer for every payment."""
        card, at = event["card_id"], event["timestamp"]
        before = self.last.pop(card, None)
        self.last[card] = at
        if len(self.last) > REMEMBERED_CARDS:
            self.last.popitem(last=False)
        seconds = (at - before).total_seconds() if before is not None else None
        yield {"card_id": card, "seconds_since_last": seconds, "hasty": seconds is not None and seconds < HASTY_S}
