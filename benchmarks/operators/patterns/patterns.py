"""A pattern counter with a real service time: each event takes it without using a processor, so that more slots help on any machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from udo_runtime import Context, Operator

SERVICE_S = 0.0025


class Patterns(Operator):
    """The event's number within its pattern."""

    def open(self, ctx: Context) -> None:
        """Count as free from now on."""
        self.version, self._free = int(ctx.version), time.perf_counter()

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """Be busy for SERVICE_S from the end of the previous event, so that late ends of sleeps do not add up. An event that fills the
        state (id -1) takes no time."""
        if event["id"] >= 0:
            now = time.perf_counter()
            self._free = max(self._free, now) + SERVICE_S
            time.sleep(self._free - now)
        state = ctx.state
        if not state:
            state["blob"], state["n"] = bytes(event["size"]), 0
        state["n"] += 1
        yield {"id": event["id"], "card": event["card"], "n": state["n"], "version": self.version}
