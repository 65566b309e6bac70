"""Operator 4: randomness that repeats when an event is processed again, since it is a hash of the event.

A random number would pick other flights when Spark repeats a micro-batch; then answers and state would disagree.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

ONE_IN = 10


class DelaySample(Operator):
    """Answers sampled flights only: the number of the carrier's flights sampled so far, and of those delayed among them."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One flight of carrier `ctx.key`."""
        if zlib.crc32(str(event["flight_id"]).encode()) % ONE_IN == 0:
            ctx.state["sampled"] = ctx.state.get("sampled", 0) + 1
            ctx.state["delayed"] = ctx.state.get("delayed", 0) + (event["delay_min"] > 0)
            yield {"carrier": ctx.key, **ctx.state}
