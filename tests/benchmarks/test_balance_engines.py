"""Balancing real engines: keys move while a stream runs, and the benchmark's own check notices a wrong answer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.harness.bringup import platform
from benchmarks.harness.rules import InvalidRun
from benchmarks.loads import engines
from elasticity import policies
from elasticity.balance.view import BalanceLimits


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*subprocess .* is still running")  # the platform outlives the handle that started it
def test_a_policy_moves_keys_between_slots_and_every_answer_is_that_of_a_plain_count() -> None:
    with platform("process") as p:
        p.push(engines.OPERATOR, "1")
        stream = engines.phases(1.5, 0.2, (1, 4), 20_000, seed=1)
        out = engines.play(p, "d", stream, 3, policies.find("balance", "DLB-H"), BalanceLimits(max_moves=200))
    assert out.moved and out.events[True] > out.events[False] > 0
    assert len(out.moves_s) == len(out.moved)
    assert out.engine_load.sum() == out.key_load.sum() == out.events[True]


def test_a_wrong_count_makes_the_run_invalid() -> None:
    run = engines._Run(None, "d", 3, None, BalanceLimits(), None)  # type: ignore[arg-type]
    keys = np.array([7, 8, 7, 9, 7])
    right = pa.record_batch([np.arange(5), keys, np.array([1, 1, 2, 1, 3])], schema=engines.BACK)
    run._sent = 5
    run._check(keys, [right])
    run._sent = 10
    again = pa.record_batch([np.arange(5, 10), keys, np.array([4, 2, 5, 2, 7])], schema=engines.BACK)
    with pytest.raises(InvalidRun, match=r"1 wrong counts.*key 7: expected 6"):
        run._check(keys, [again])
