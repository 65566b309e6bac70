"""DS2: all operators at once get the replicas that source rates, selectivities and true rates require."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticity.scaling.ds2 import Ds2Memory, ds2, true_rate
from elasticity.scaling.model import OperatorSample, Plan
from tests.elasticity.applications import decide, kinds, operator, replica, sample


def granted(*operators: OperatorSample, memory: Ds2Memory | None = None) -> list[tuple[str, str, int]]:
    return kinds(decide(ds2, sample(*operators), memory)[0].granted)


def test_the_true_rate_is_per_busy_second() -> None:
    assert true_rate(operator(uses=(0.25, 0.25))) == pytest.approx(100)
    assert true_rate(operator(uses=(0.0,))) is None


def test_the_replica_with_the_most_arrivals_bounds_the_others() -> None:
    # given four replicas of 100 events/s when busy, one of which gets 95 of 110 events: the four can answer 116
    assert true_rate(operator(uses=(0.95, 0.05, 0.05, 0.05))) == pytest.approx(100 * 110 / 95 / 4)


def test_an_operator_grows_no_further_than_what_those_behind_it_can_take() -> None:
    first = OperatorSample("first", (replica(use=1.0, arrivals=300.0),))
    last = operator("last", (0.5, 0.5), upstream="first", most=2)
    assert granted(first, last) == [("first", "scale_out", 4)]  # 200 / 60, not 300 / 60


def test_a_chain_is_scaled_at_once_through_its_selectivities() -> None:
    # given 300 events/s into one replica that answers 100 of them; it passes on two for each, to one that answers 50 when busy
    first = OperatorSample("first", (replica(use=1.0, arrivals=300.0, outputs=200.0),))
    second = OperatorSample("second", (replica(use=1.0, answers=50.0, arrivals=200.0),), ("first",))
    # then 300 / (100 · 0.6) and 600 / (50 · 0.6), although the second saw only 200
    assert granted(first, second) == [("first", "scale_out", 5), ("second", "scale_out", 20)]


def test_one_step_is_enough_and_then_nothing_changes() -> None:
    five = OperatorSample("op", tuple(replica(f"r{i}", use=0.6) for i in range(5)))
    assert granted(five) == []


def test_a_use_within_bounds_is_left_alone() -> None:
    assert granted(operator(uses=(0.78, 0.78))) == []
    assert granted(operator(uses=(0.42, 0.42))) == []
    assert granted(operator(uses=(0.82, 0.82))) == [("op", "scale_out", 3)]


def test_a_backlog_is_to_be_worked_off() -> None:
    assert granted(operator(uses=(0.7, 0.7), backlog=3000.0)) == [("op", "scale_out", 4)]  # 140 + 6000 / 60 at 60 per replica


def test_an_operator_that_saw_nothing_keeps_what_is_known_of_it() -> None:
    _, memory = decide(ds2, sample(operator(uses=(0.5,))))
    assert memory.rate["op"] == pytest.approx(100)
    silent = operator(uses=(0.0,), arrivals=200.0)
    assert granted(silent, memory=memory) == [("op", "scale_out", 4)]
    assert granted(silent) == []


def test_scaling_out_that_brings_nothing_is_not_repeated() -> None:
    decision, memory = decide(ds2, sample(operator(uses=(1.0,), arrivals=300.0)))
    assert kinds(decision.granted) == [("op", "scale_out", 5)]
    # when five replicas together answer no more than the single one did
    same = OperatorSample("op", tuple(replica(f"r{i}", use=1.0, answers=20.0, arrivals=60.0) for i in range(5)))
    decision, memory = decide(ds2, sample(same, at_s=60), memory)
    assert not decision.granted
    assert decision.declined[0][1] == "scaling out has not helped recently"
    # then it is tried again after half an hour
    assert decide(ds2, replace(sample(same), at_s=3600), memory)[0].granted
    assert isinstance(decision.declined[0][0], Plan)
