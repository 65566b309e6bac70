"""Rolls dice and looks at the clock: each answer names the value drawn for the answer before it, so that a key's answers are a chain.

The number of answers and their `n` follow from the events; `drawn` and `at` (ns of the machine's monotonic clock) do not.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

WAIT = dt.timedelta(seconds=20)
FORGET = dt.timedelta(seconds=60)
Event = dict[str, Any]
State = dict[str, Any]
Answers = Iterator[Event]


class Chain(Operator):
    """Keyed by `k`; A asks for one more link later, C lets the chain end later."""

    def process(self, event: Event, ctx: Any) -> Answers:
        """Answer the event with a link."""
        yield self._link(event["k"], event["id"], "event", ctx.state)
        if event["kind"] == "A":
            ctx.timer(event["t"] + WAIT)
        elif event["kind"] == "C":
            ctx.expire(event["t"] + FORGET)

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Answers:
        """Answer the timer with a link."""
        yield self._link(key, -1, f"timer of {at:%H:%M:%S}", ctx.state)

    def _link(self, key: str, number: int, what: str, state: State) -> Event:
        n, before = self._last(state)
        link = [n + 1, random.getrandbits(62), time.monotonic_ns()]
        self._remember(state, link)
        return {"k": key, "id": number, "what": what, "n": n + 1, "before": before, "drawn": link[1], "at": link[2]}

    def _last(self, state: State) -> tuple[int, int]:
        return state.get("n", 0), state.get("drawn", 0)

    def _remember(self, state: State, link: list[int]) -> None:
        state["n"], state["drawn"], state["at"] = link


class Packed(Chain):
    """The chain with another form of state: the link as a list."""

    def _last(self, state: State) -> tuple[int, int]:
        n, drawn, _ = state.get("link", (0, 0, 0))
        return n, drawn

    def _remember(self, state: State, link: list[int]) -> None:
        state["link"] = link

    def migrate(self, old: State, from_version: int) -> State:
        """Migrate from the plain form."""
        return {"link": [old["n"], old["drawn"], old["at"]]} if old else {}


class Unpacked(Chain):
    """The plain chain, which also migrates back from the other form."""

    def migrate(self, old: State, from_version: int) -> State:
        """Migrate from the form of `Packed`."""
        return dict(zip(("n", "drawn", "at"), old["link"], strict=True)) if old else {}
