"""The simulated chain: the slots show the injected bottleneck, and a detector's reports are judged by it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulated.bottlenecks import KINDS, Episode, play
from benchmarks.suites.bottleneck import _judge
from elasticity.bottleneck.signals import SlotSample


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_injected_operator_falls_behind_on_its_own_account(kind: str) -> None:
    seen: list[list[list[SlotSample]]] = []
    episode = play(kind, np.random.default_rng(5), lambda t, operators: seen.append(operators))
    assert len(seen) == 60
    for operator, slots in enumerate(seen[-1]):
        behind = any(s.busy > 0.8 and s.backlog > 100 and s.blocked < 0.1 for s in slots)
        assert behind == (operator == episode.operator)


def test_reports_are_hits_false_alarms_or_too_late() -> None:
    slow = Episode("cpu", 1, 20)
    found = _judge(
        [(slow, [[], [21], []]), (slow, [[], [19, 22], []]), (slow, [[30], [40], []]), (Episode("none", None, None), [[], [], [5]])]
    )
    assert found.hit_rate == pytest.approx(2 / 3, abs=1e-4)
    assert found.false_alarm_rate == pytest.approx(3 / 12)
    assert found.delay_s == 25  # the mean of 20 and 30
