"""A pattern over two inputs: news, and within a minute the first trade whose price differs by 2 % from the last price before the news.

Events wait until event time has passed them in both inputs, and are then processed in the order of their times.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

WITHIN = dt.timedelta(minutes=1)
MOVE = 0.02


class NewsMoves(Operator):
    """State by symbol, possibly written in another language: {"waiting": events, as [at, input, headline or price], "news": items without
    a large move so far, as [at, headline, price before it], "price": the last one}. There is no price before the first trade."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """Take an event of either input; one without a headline or price is ignored."""
        at, state = event["at"], ctx.state
        if said := event["headline"] if event["input"] == "news" else event["price"]:
            waiting = [*state.get("waiting", []), [at, event["input"], said]]
            state.update(waiting=waiting, news=state.get("news", []), price=state.get("price"))
            ctx.timer(at)

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Process the events of this moment: news first, then the trades in the order of their arrival."""
        waiting, price = ctx.state.get("waiting", []), ctx.state.get("price")
        now = [(source, said) for when, source, said in waiting if when == at]
        news = [n for n in ctx.state.get("news", []) if at - n[0] <= WITHIN]
        news += [[at, said, price] for source, said in now if source == "news"]
        for price in (said for source, said in now if source == "trades"):
            unmoved = []
            for one in news:
                _, headline, before = one
                if before is not None and abs(price - before) >= MOVE * before:
                    yield {"symbol": key, "at": at, "headline": headline, "change": (price - before) / before}
                else:
                    unmoved.append(one)
            news = unmoved
        ctx.state.update(waiting=[w for w in waiting if w[0] > at], news=news, price=price)
