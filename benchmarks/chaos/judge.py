"""Compares what a query answered, and what is durable of it, with the oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from benchmarks.chaos.attempt import Rows
from benchmarks.chaos.oracle import Answers, Event, Oracle
from benchmarks.chaos.state import durable_state


class Mismatch(Exception):
    """The promise is broken: what was expected and what came."""


def judge(
    epochs: Sequence[Sequence[Event]],
    answers: Mapping[int, Rows],
    node_home: Path,
    deployment: str,
    session: str,
    skipped: Collection[int] = (),
) -> None:
    """Mismatch unless every epoch's answers are, key by key and in order, the oracle's, and so is the state after the last.

    Epochs `skipped` left no trace: a limit cut all their tasks short.
    """
    oracle = Oracle()
    for epoch, events in enumerate(epochs):
        if epoch in skipped:
            continue
        expected, got = oracle.epoch(events), _by_key(answers[epoch])
        for key in sorted({*expected, *got}):
            if (want := expected.get(key, [])) != (have := got.get(key, [])):
                raise Mismatch(f"epoch {epoch}, key {key}:\n  expected {want}\n  got      {have}")
    states, timers = oracle.final()
    have_states, have_timers = durable_state(node_home, deployment, session)
    for key in sorted({*states, *have_states}):
        if states.get(key) != have_states.get(key):
            raise Mismatch(f"final state of key {key}:\n  expected {states.get(key)}\n  got      {have_states.get(key)}")
    if timers != have_timers:
        raise Mismatch(f"final timers:\n  missing {sorted(timers - have_timers)}\n  too many {sorted(have_timers - timers)}")


def _by_key(rows: Rows) -> Answers:
    answers: Answers = defaultdict(list)
    for row in rows:
        answers[row["k"]].append((row["id"], row["what"], row["n"]))
    return answers
