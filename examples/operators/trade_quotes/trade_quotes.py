"""A keyed join of two inputs: each trade with the quote that was in force when it was made.

Trades wait until event time has passed them in both inputs, so it does not matter which input is read first, or faster.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator


class TradeQuotes(Operator):
    """State by symbol, possibly written in another language: {"trades": those that wait, as [at, price], "quotes": those still needed, by
    time, as [at, bid, ask]}."""

    def process(self, event: dict[str, Any], ctx: Any) -> None:
        """Take an event of either input: `event["input"]` names it."""
        at, trades, quotes = event["at"], ctx.state.get("trades", []), ctx.state.get("quotes", [])
        if event["input"] == "quotes":
            quotes = sorted([*quotes, [at, event["bid"], event["ask"]]], key=lambda quote: quote[0])
        else:
            trades = [*trades, [at, event["price"]]]
            ctx.timer(at)
        ctx.state.update(trades=trades, quotes=quotes)

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        """Called when event time has passed the trades of this moment in both inputs."""
        trades, quotes = ctx.state.get("trades", []), ctx.state.get("quotes", [])
        before = [quote for quote in quotes if quote[0] <= at]
        _, bid, ask = before[-1] if before else (at, None, None)
        for _, price in (trade for trade in trades if trade[0] == at):
            yield {"symbol": key, "at": at, "price": price, "bid": bid, "ask": ask}
        trades = [trade for trade in trades if trade[0] > at]
        ctx.state.update(trades=trades, quotes=before[-1:] + quotes[len(before) :])
