"""A keyed operator that takes a real time per event without using a processor for it, so that more slots help on any machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from udo_runtime import Context, Operator

SERVICE_S = 0.0005
# Sleeping costs processor time as well, so the operator sleeps for several events at once.
_LEAST_SLEEP_S = 0.002


class Paced(Operator):
    """The event's number within its key."""

    def open(self, ctx: Context) -> None:
        """Count as free from now on."""
        self._free = time.perf_counter()

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """Be busy for SERVICE_S, then number the event."""
        now = time.perf_counter()
        self._free = max(self._free, now) + SERVICE_S
        if self._free - now > _LEAST_SLEEP_S:
            time.sleep(self._free - now)
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "key": event["key"], "n": n}
