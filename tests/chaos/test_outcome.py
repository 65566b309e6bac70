"""The results of a range of seeds: what counts as a difference, and what happens when the run is interrupted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.chaos import lanes
from benchmarks.chaos.judge import Mismatch, Stuck
from benchmarks.chaos.outcome import Outcome
from benchmarks.harness.rules import InvalidRun
from benchmarks.verification import exactly_once
from tests.conftest import bound

SEEDS = 1000


class FakeQuery:
    runs = 1

    def __init__(self, run: Callable[[], None]) -> None:
        self.faults: Counter[str] = Counter()
        self.run = run


def raising(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def played(*errors: Exception) -> Outcome:
    outcome = Outcome()
    outcome.play(range(len(errors)), 1, lambda seed: FakeQuery(raising(errors[seed])), lambda seed, query, error: error, lambda seed: None)
    return outcome


def test_an_interrupted_run_starts_no_further_seed() -> None:
    # given one query at a time, the second of which waits until the first one's end was reported
    started, told = list[int](), threading.Event()

    def query_of(seed: int) -> FakeQuery:
        started.append(seed)
        return FakeQuery(lambda: told.wait(bound(10)) and time.sleep(0.001) if seed else None)  # type: ignore[func-returns-value]

    def interrupted(seed: int) -> None:
        told.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Outcome().play(range(SEEDS), 1, query_of, lambda *_: "", interrupted)
    assert len(started) < SEEDS


def test_only_what_differs_is_a_mismatch() -> None:
    outcome = played(Mismatch("expected 1, got 2"), Stuck("stuck for 60 s"), OSError("no space left"))

    assert outcome.mismatched == {0}
    assert set(outcome.reports) == {0, 1, 2}


@pytest.mark.parametrize("error", [Stuck("stuck for 60 s"), OSError("no space left")])
def test_a_broken_build_is_not_caught_by_an_error_that_a_right_one_may_meet(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(error)
    monkeypatch.setattr(lanes, "run", lambda *_: found)

    with pytest.raises(InvalidRun, match="proves nothing"):
        exactly_once.run(quick=True, driver="process", seed=0, broken="fence")


def test_a_broken_build_is_caught_by_the_seeds_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(OSError("no space left"), Mismatch("expected 1, got 2"))
    monkeypatch.setattr(lanes, "run", lambda *_: found)

    caught: Any = exactly_once.run(quick=True, driver="process", seed=0, broken="fence")
    assert (caught.mismatches, caught.caught_by) == (1, [1])
