"""The answers of one plain process to the epochs, each run once and in order. Shares nothing with the runtime but the operator."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.chaos.kinds import Kind, State

DELAY = dt.timedelta(seconds=5)
_EXPIRES = "\0expires"
Event = dict[str, Any]
# The answers of one epoch by key: (id, what, n), in order.
Answers = dict[str, list[tuple[int, str, int]]]


class _Ctx:
    def __init__(self, oracle: Oracle, key: str) -> None:
        self._oracle, self._key = oracle, key
        self.state = oracle.state.setdefault(key, {})

    def timer(self, at: dt.datetime) -> None:
        self._oracle.timers.add((at, "t", self._key))

    def expire(self, at: dt.datetime) -> None:
        self.state[_EXPIRES] = at
        self._oracle.timers -= {t for t in self._oracle.timers if t[1:] == ("x", self._key)}
        self._oracle.timers.add((at, "x", self._key))


class Oracle:
    """State by key, pending timers as (at, "t"imer or "x"piry, key), and the highest event time so far."""

    def __init__(self, kind: Kind) -> None:
        self.state: dict[str, State] = {}
        self.timers: set[tuple[dt.datetime, str, str]] = set()
        self._highest: dt.datetime | None = None
        self._operator = kind.make()

    def epoch(self, events: Sequence[Event]) -> Answers:
        """Run one epoch; return its answers by key."""
        answers: Answers = defaultdict(list)
        for event in events:
            self._note(answers, self._operator.process(event, _Ctx(self, event["k"])))
        if self._highest is not None:
            self._fire(answers, self._highest - DELAY)
        self._highest = max([e["t"] for e in events] + ([self._highest] if self._highest else []), default=None)
        self.state = {k: s for k, s in self.state.items() if s}
        return answers

    def _fire(self, answers: Answers, watermark: dt.datetime) -> None:
        for entry in sorted(t for t in self.timers if t[0] <= watermark):
            self.timers.discard(entry)
            at, kind, key = entry
            ctx = _Ctx(self, key)
            if kind == "t":
                self._note(answers, self._operator.on_timer(key, at, ctx))
            elif ctx.state.get(_EXPIRES) == at:
                ctx.state.clear()

    @staticmethod
    def _note(answers: Answers, made: Iterable[Event]) -> None:
        for a in made:
            answers[a["k"]].append((a["id"], a["what"], a["n"]))

    def final(self) -> tuple[dict[str, State], set[tuple[dt.datetime, str, str]]]:
        """Return the state of every key that has any, without expiry times, and the pending timers."""
        return {k: {n: v for n, v in s.items() if n != _EXPIRES} for k, s in self.state.items()}, set(self.timers)
