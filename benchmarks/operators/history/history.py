"""Answers that depend on order and history, in four ways; the first letter of the key says which.

c: a running count. l: the last three events, and counts by kind. s: sessions closed by a timer. p: A, then B, and no C within a time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

from udo_runtime import Operator

GAP = dt.timedelta(seconds=20)
WITHIN = dt.timedelta(seconds=30)
FORGET = dt.timedelta(seconds=60)
Event = dict[str, Any]
State = dict[str, Any]
Answers = Iterator[Event]


class History(Operator):
    """Keyed by `k`."""

    def process(self, event: Event, ctx: Any) -> Answers:
        """Answer an event."""
        for what, n in _BEHAVIOURS[event["k"][0]](event, ctx.state, ctx):
            yield {"k": event["k"], "id": event["id"], "what": what, "n": n}

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Answers:
        """Answer that a session is over, or that no C came."""
        state, at = ctx.state, at.replace(tzinfo=None)
        if at not in state.get("asked", [at]):
            yield {"k": key, "id": -1, "what": f"a timer nobody asked for: {at}", "n": 0}
        if key[0] == "s" and state.get("until") == at:
            yield {"k": key, "id": state["first"], "what": "session", "n": state["n"]}
            state.clear()
        elif key[0] == "p" and state.get("due") == at:
            yield {"k": key, "id": state["b"], "what": "A B and no C", "n": state["a"]}
            for name in ("a", "b", "due"):
                del state[name]


class Wrapped(History):
    """The operator with another form of state: all of it under one name."""

    def process(self, event: Event, ctx: Any) -> Answers:
        """Do the same, on the inner state."""
        return self._inside(ctx, super().process(event, _Inside(ctx)))

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Answers:
        """Do the same, on the inner state."""
        return self._inside(ctx, super().on_timer(key, at, _Inside(ctx)))

    @staticmethod
    def _inside(ctx: Any, answers: Answers) -> Answers:
        yield from answers
        if not ctx.state["in"]:
            del ctx.state["in"]

    def migrate(self, old: State, from_version: int) -> State:
        """Migrate from the plain form."""
        return {"in": old} if old else {}


class Unwrapped(History):
    """The plain operator, which also migrates back from the other form."""

    def migrate(self, old: State, from_version: int) -> State:
        """Migrate from the form of `Wrapped`."""
        return dict(old.get("in", {}))


class OneMore(Unwrapped):
    """Answers each event with one more row; must never serve."""

    def process(self, event: Event, ctx: Any) -> Answers:
        """Do the same, and add the row."""
        yield from super().process(event, ctx)
        yield {"k": event["k"], "id": event["id"], "what": "one more", "n": 0}


class _Inside:
    def __init__(self, ctx: Any) -> None:
        self.state, self.timer, self.expire = ctx.state.setdefault("in", {}), ctx.timer, ctx.expire


def _count(event: Event, state: State, ctx: Any) -> Iterator[tuple[str, int]]:
    state["n"] = state.get("n", 0) + 1
    yield "count", state["n"]


def _last(event: Event, state: State, ctx: Any) -> Iterator[tuple[str, int]]:
    kinds = state.setdefault("kinds", {})
    kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
    yield f"after {state.get('recent', [])} {sorted(kinds.items())}", state.get("recent", [-1])[-1]
    state["recent"] = [*state.get("recent", []), event["id"]][-3:]
    state["at"] = event["t"]


def _session(event: Event, state: State, ctx: Any) -> Iterator[tuple[str, int]]:
    state.setdefault("first", event["id"])
    state["n"] = state.get("n", 0) + 1
    until = event["t"] + GAP
    state["until"] = max(state.get("until", until), until)
    state["asked"] = [*state.get("asked", []), until]
    ctx.timer(until)
    yield from ()


def _pattern(event: Event, state: State, ctx: Any) -> Iterator[tuple[str, int]]:
    if event["kind"] == "A":
        state["a"] = event["id"]
        ctx.expire(event["t"] + FORGET)
    elif event["kind"] == "B" and "a" in state and "b" not in state:
        state["b"], state["due"] = event["id"], event["t"] + WITHIN
        state["asked"] = [*state.get("asked", []), state["due"]]
        ctx.timer(state["due"])
    elif event["kind"] == "C" and "b" in state:
        yield "C came in time", state["a"]
        for name in ("a", "b", "due"):
            del state[name]


_BEHAVIOURS: dict[str, Callable[[Event, State, Any], Iterator[tuple[str, int]]]] = {
    "c": _count,
    "l": _last,
    "s": _session,
    "p": _pattern,
}
