"""The simulated application and cluster agree with arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from benchmarks.simulated import chain, cluster
from elasticity.scaling.model import Sample, ScalingDecision, plan


@dataclass(frozen=True)
class Nothing:
    """No settings."""


def never(sample: Sample, memory: None, rng: random.Random, settings: Nothing) -> tuple[ScalingDecision, None]:
    """A policy that changes nothing."""
    return ScalingDecision(), None


def always(sample: Sample, memory: None, rng: random.Random, settings: Nothing) -> tuple[ScalingDecision, None]:
    """A policy that moves a replica in each round."""
    first = sample.operators[0]
    return ScalingDecision((plan(sample, first, "migrate", 1, "", first.replicas[0].name, "n1"),)), None


def play(policy: str, rate: float, cost: Any = chain.LIVE_MS) -> chain.DayFigures:
    return chain.play(np.full(600, rate), f"{__name__}:{policy}", {}, cost, seed=1).figures()


def test_without_load_an_event_takes_its_service_times_and_hops() -> None:
    expected = 1000 * sum(s.service_s for s in chain.ROUTES) + chain.HOP_MS * len(chain.ROUTES)
    assert play("never", 0.01).response_p95_ms == pytest.approx(expected, abs=0.1)


def test_an_operator_that_cannot_keep_up_is_waited_for_ever_longer() -> None:
    # given 200 events/s: count_by_window gets 180 of them, at 7 ms each
    figures = play("never", 200)
    assert figures.response_p95_ms > 60_000
    assert figures.replica_hours == pytest.approx(6 / 6, abs=0.1)


def test_each_round_with_a_step_stops_the_application_for_what_it_costs() -> None:
    rounds = 600 / chain.CONTROL_S - 1  # the last round is at the end
    assert play("always", 1, chain.PAUSE_MS).availability_percent == pytest.approx(100 - 100 * rounds * 8.6 / 600, abs=0.01)
    assert play("always", 1).availability_percent > 99.8


def test_a_large_cluster_stays_balanced_with_few_moves() -> None:
    figures = cluster.play("DLB-H", hours=0.5, seed=1)
    assert figures.imbalance_max <= 15
    assert figures.moves_per_hour < 0.1 * cluster.GROUPS
