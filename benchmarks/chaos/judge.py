"""Compares a query's answers and its durable state with the oracle; follows the chains of an operator that rolls dice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from benchmarks.chaos.attempt import Rows
from benchmarks.chaos.kinds import Kind, State
from benchmarks.chaos.oracle import Answers, Event, Oracle
from benchmarks.chaos.state import durable_state


class Mismatch(Exception):
    """The guarantee is broken; the message says what was expected and what came."""


class Stuck(Mismatch):
    """A query did not end. No answer differs, and the machine may just be slow."""


class Chains:
    """The last link of each key so far. Every answer must continue the one before it, and the clock must never go back."""

    def __init__(self) -> None:
        self._last: dict[str, Event] = {}

    def follow(self, epoch: int, rows: Rows) -> None:
        """Check the answers of one epoch, in order for each key; a chain whose state expired begins anew, with n = 1."""
        for row in rows:
            last = self._last.get(row["k"])
            if last is not None and row["n"] > 1 and row["before"] != last["drawn"]:
                raise Mismatch(f"epoch {epoch}, key {row['k']}: {row} goes on from {row['before']}, but the answer before it was {last}")
            if row["n"] == 1 and row["before"]:
                raise Mismatch(f"epoch {epoch}, key {row['k']}: {row} is the first one and goes on from {row['before']}")
            if last is not None and row["at"] < last["at"]:
                raise Mismatch(f"epoch {epoch}, key {row['k']}: the clock of {row} is behind that of the answer before it, {last}")
            self._last[row["k"]] = row

    def end(self, states: Mapping[str, State]) -> None:
        """Check that the durable state of each key is its last answer."""
        for key, state in states.items():
            last = self._last.get(key, {})
            if any(state[name] != last.get(name) for name in ("n", "drawn", "at")):
                raise Mismatch(f"final state of key {key}: {state}, but its last answer was {last}")


def judge(
    kind: Kind,
    epochs: Sequence[Sequence[Event]],
    answers: Mapping[int, Rows],
    node_home: Path,
    deployment: str,
    session: str,
    skipped: Collection[int] = (),
) -> None:
    """Raise Mismatch unless every epoch's answers, key by key and in order, and the state after the last one are the oracle's.

    Epochs `skipped` left no trace: a limit cut all their tasks short.
    """
    oracle, chains = Oracle(kind), Chains()
    for epoch, events in enumerate(epochs):
        if epoch in skipped:
            continue
        require_answers(epoch, oracle.epoch(events), answers[epoch])
        if kind.chained:
            chains.follow(epoch, answers[epoch])
    states, timers = oracle.final()
    have_states, have_timers = durable_state(kind, node_home, deployment, session)
    if kind.chained:
        chains.end(have_states)
        states, have_states = _counts(states), _counts(have_states)
    for key in sorted({*states, *have_states}):
        if states.get(key) != have_states.get(key):
            raise Mismatch(f"final state of key {key}:\n  expected {states.get(key)}\n  got      {have_states.get(key)}")
    if timers != have_timers:
        raise Mismatch(f"final timers:\n  missing {sorted(timers - have_timers)}\n  too many {sorted(have_timers - timers)}")


def require_answers(epoch: int, expected: Answers, rows: Rows) -> None:
    """Raise Mismatch unless the answers of an epoch are these, key by key and in order."""
    got = _by_key(rows)
    for key in sorted({*expected, *got}):
        if (want := expected.get(key, [])) != (have := got.get(key, [])):
            raise Mismatch(f"epoch {epoch}, key {key}:\n  expected {want}\n  got      {have}")


def _counts(states: Mapping[str, State]) -> dict[str, State]:
    return {key: {"n": state["n"]} for key, state in states.items()}


def _by_key(rows: Rows) -> Answers:
    answers: Answers = defaultdict(list)
    for row in rows:
        answers[row["k"]].append((row["id"], row["what"], row["n"]))
    return answers
