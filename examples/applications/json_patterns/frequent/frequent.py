"""Windows by event time in a keyed operator: `ctx.state` holds the counts of the open windows, a timer closes each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

WINDOW = dt.timedelta(minutes=1)
FREQUENT = 30  # times in a window
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Frequent(Operator):
    """The count of pattern `ctx.key` in each window in which it was frequent."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """Count; the timer answers."""
        at = event["at"]
        end = at - (at - EPOCH) % WINDOW + WINDOW
        if ctx.watermark is None or end > ctx.watermark:  # else it is late: the window is closed
            ctx.state[str(end)] = ctx.state.get(str(end), 0) + 1
            ctx.timer(end)

    def on_timer(self, key: str, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called when event time has passed the end of a window, and the allowed delay."""
        count = ctx.state.pop(str(at))
        if count >= FREQUENT:
            yield {"window_end": at, "pattern": key, "count": count}
