"""Known faults of Flink's autoscaler must not occur here, under any of the policies."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.simulated import chain
from elasticity import policies
from elasticity.scaling.ds2 import ds2
from elasticity.scaling.model import OperatorSample, Sample
from tests.elasticity.applications import decide, kinds, operator, replica, sample
from tests.support.selection import long

# With a token for every step: these tests are about the proposals.
SETTINGS: dict[str, dict[str, Any]] = {"edf": {"idle_token_s": 30.0, "capacity": 100}, "ds2": {}, "fuzzy": {}}
POLICIES = list(SETTINGS)


def over_hours(policy: str, seen: Sample, hours: float = 2.0) -> set[tuple[str, str]]:
    """The (operator, kind) of the steps granted while an application looks like this for that many hours."""
    found, memory, named = set(), None, policies.find("scaling", policy)
    for i in range(int(hours * 120)):
        decision, memory = decide(named, replace(seen, at_s=30.0 * i), memory, random.Random(i), **SETTINGS[policy])
        found |= {(name, kind) for name, kind, _ in kinds(decision.granted)}
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_operator_is_scaled_in_so_that_the_following_tests_can_fail(policy: str) -> None:
    assert over_hours(policy, sample(operator(uses=(0.05, 0.05, 0.05)))) == {("op", "scale_in")}


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_scaled_in_while_a_backlog_is_worked_off(policy: str) -> None:  # FLINK-31318
    # given hardly used replicas, and 10 s of work in their queues
    assert ("op", "scale_in") not in over_hours(policy, sample(operator(uses=(0.2, 0.2, 0.2), backlog=1000.0)))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_mean_over_replicas_does_not_hide_a_skewed_one(policy: str) -> None:  # FLINK-30652
    # given four replicas used 27 % on average, one of them 95 %
    assert ("op", "scale_in") not in over_hours(policy, sample(operator(uses=(0.95, 0.05, 0.05, 0.05))))


@pytest.mark.parametrize("policy", POLICIES)
def test_figures_that_are_missing_are_no_load_of_zero(policy: str) -> None:  # FLINK-39925
    lost = operator(uses=(0.05, None, 0.05))
    assert over_hours(policy, sample(lost)) == set()
    assert over_hours(policy, sample(OperatorSample("op", ()))) == set()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_source_that_falls_behind_while_it_looks_idle_is_not_scaled_in(policy: str) -> None:  # FLINK-33306
    behind = operator(uses=(0.2, 0.2), answers=20.0, arrivals=40.0, backlog=5000.0)
    assert ("op", "scale_in") not in over_hours(policy, sample(behind))


def test_a_source_that_falls_behind_while_it_looks_idle_is_rated_by_what_it_answers() -> None:  # FLINK-33306
    # given 40 answers/s of 80 arrivals: by its busy time it could answer 200, and would need no more replicas
    behind = operator(uses=(0.2, 0.2), answers=20.0, arrivals=40.0, backlog=5000.0)
    decision, memory = decide(ds2, sample(behind))
    assert memory.rate["op"] == pytest.approx(20)
    assert kinds(decision.granted) == [("op", "scale_out", 21)]  # (80 + 10,000 / 60) / (20 · 0.6)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_operator_that_works_all_the_time_is_not_scaled_in_when_output_before_it_falls(policy: str) -> None:  # FLINK-38538
    # given an operator that passes on one event in fifty, and the next operator, which is busy all the time nevertheless
    before = operator("before", uses=(0.6, 0.6), outputs=1.2)
    busy = operator("busy", uses=(1.0, 1.0, 1.0), upstream="before")
    assert ("busy", "scale_in") not in over_hours(policy, sample(before, busy))


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_grows_in_front_of_a_bottleneck_that_cannot(policy: str) -> None:  # FLINK-31215
    first = OperatorSample("first", (replica(use=0.97, arrivals=300.0, backlog=800.0),))
    last = OperatorSample("last", (replica(use=1.0, arrivals=97.0, backlog=900.0),), ("first",), max_replicas=1)
    assert ("first", "scale_out") not in over_hours(policy, sample(first, last))
    # and it does if the bottleneck can grow
    assert ("first", "scale_out") in over_hours(policy, sample(first, replace(last, replicas=(replica(use=0.5),))))


def test_scaling_out_is_judged_by_the_replicas_it_was_granted() -> None:  # FLINK-39743
    # given twenty replicas with far more arrivals than they can answer, and a limit of 21
    def of(n: int, each: float) -> OperatorSample:
        return OperatorSample("op", tuple(replica(f"r{i}", 1.0, arrivals=each) for i in range(n)), max_replicas=21)

    decision, memory = decide(ds2, sample(of(20, 500.0)))
    assert kinds(decision.granted) == [("op", "scale_out", 21)]
    # when 21 answer a twentieth more, which is little compared with the need
    decision, memory = decide(ds2, sample(of(21, 476.0), at_s=60), memory)
    # then no more could be expected
    assert not memory.held


@pytest.mark.parametrize("policy", [p if p == "fuzzy" else long(p) for p in POLICIES])
def test_a_day_takes_no_more_than_twenty_changes(policy: str) -> None:  # FLINK-36018
    settings = {} if policy == "edf" else SETTINGS[policy]
    day = chain.day_rates(86_400, np.random.default_rng(7))
    assert chain.play(day, policy, settings, chain.LIVE_MS, seed=7, dt=10).figures().reconfigurations <= 20


@pytest.mark.parametrize("policy", ["edf", "ds2", "fuzzy"])
@pytest.mark.parametrize("period_s", [120, 600])
def test_an_oscillating_load_does_not_make_it_flap(policy: str, period_s: int) -> None:
    # given a load that doubles and halves every few minutes for six hours
    seconds = np.arange(6 * 3600)
    rates = chain.PEAK_PER_S * np.where(seconds // (period_s // 2) % 2, 0.9, 0.45)
    out = chain.play(rates, policy, SETTINGS[policy], chain.LIVE_MS, seed=3, dt=10)
    # then enough replicas for the higher load are found within an hour; afterwards none is given back, and hardly one added
    later = [p for t, p in out.steps if t > 3600]
    assert [p for p in later if p.kind == "scale_in"] == []
    assert len(later) <= 1
