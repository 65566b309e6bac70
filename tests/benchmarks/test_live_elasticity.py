"""Bottlenecks and a day on real deployments: the injected load is the one asked for, and the figures follow from the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import record
from benchmarks.loads import injected, live_chain
from benchmarks.loads.injected import RATE, Shape
from benchmarks.suites import elasticity
from elasticity.scaling.application_wish import ApplicationWish
from elasticity.scaling.modes import Elasticity


@pytest.mark.parametrize(("kind", "slots"), [("cpu", 1), ("memory", 1), ("slow_downstream", 1), ("skew", 2), ("none", 2)])
def test_an_injected_operator_needs_more_time_than_there_is_and_no_other_one_does(kind: str, slots: int) -> None:
    lanes: list[Any] = [SimpleNamespace(shape=Shape(RATE, 2000, 3000)) for _ in range(slots)]
    injected.inject(kind, lanes, 1.5)
    busy = [lane.shape.rate * (lane.shape.cpu_us + lane.shape.wait_us) / 1e6 for lane in lanes]
    assert busy[0] == pytest.approx(0.3 if kind == "none" else 1.5, rel=0.01)
    assert all(b < 0.5 for b in busy[1:])
    on_cpu = lanes[0].shape.rate * lanes[0].shape.cpu_us / 1e6
    assert (on_cpu > 0.8) == (kind in ("cpu", "memory")) and (lanes[0].shape.resident_mb > 0) == (kind == "memory")


def test_time_without_answers_is_downtime_and_slots_are_added_up_over_the_day() -> None:
    due = np.arange(0, 100, 0.5)
    at = np.where((due > 50) & (due < 60), 60.0, due + 0.2)  # a stop of ten seconds, then all answers at once
    gap_s = np.diff(at).max()
    found = live_chain.LiveOutcome(100.0, at, due, [(0.0, 6), (50.0, 8), (100.0, 8)], steps=2).figures()
    assert found.availability_percent == pytest.approx(100 - (gap_s - live_chain.GAP_S), abs=0.01)
    assert (found.replica_hours, found.replicas_most, found.reconfigurations) == (168.0, 8, 2)
    assert found.response_ok_percent == pytest.approx(100 * (1 - np.sum((due > 50) & (due < 59)) / len(due)), abs=0.01)


def test_pauses_of_the_source_are_downtime_however_short() -> None:
    # given an event every 100 ms, and five pauses of 0.86 s, whose events are sent afterwards
    due = np.arange(0, 100, 0.1)
    at = due.copy()
    for pause in (10, 30, 50, 70, 90):
        at[(due >= pause) & (due < pause + 0.86)] = pause + 0.86
    found = live_chain.LiveOutcome(100.0, at, due, [(0.0, 6), (100.0, 6)], steps=5, paused_s=5 * 0.86, pause_s=0.86).figures()
    assert found.availability_percent == pytest.approx(95.7, abs=0.01)


def test_each_contender_is_something_that_deployments_and_applications_take() -> None:
    for decider in elasticity.LIVE.values():
        Elasticity.parse(decider.elasticity(live_chain.MOST))
        if (application := decider.application()) is not None:
            ApplicationWish.parse({"deployments": ["a"], **application})


def test_the_newest_real_run_goes_before_a_simulated_one_and_a_full_one_before_a_quick_one() -> None:
    def run(n: int, *, simulated: bool, quick: bool) -> dict[str, Any]:
        return {"n": n, "simulated": simulated, "arguments": {"quick": quick}}

    real, quick, model = run(1, simulated=False, quick=False), run(2, simulated=False, quick=True), run(3, simulated=True, quick=False)
    assert record.beside_its_model([real, quick, model]) == {**real, "model": model}
    assert record.beside_its_model([model]) == model and record.beside_its_model([quick]) == quick
    assert record.beside_its_model([]) is None
