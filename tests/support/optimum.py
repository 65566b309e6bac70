"""The distance of an allocation from the optimum."""

from __future__ import annotations

import numpy as np

from elasticity.allocation.greedy import allocate, fair_limit
from elasticity.allocation.reallocation import carried_load
from elasticity.allocation.refine import refine
from elasticity.allocation.values import checkpoint_values, score
from tests.elasticity.literal import optimal_score


def gaps_to_optimum(seed: int, fairness: float) -> tuple[float, float]:
    """For greedy and refined placement: how much of the optimum's gain over random placement each one misses, as a share."""
    rng = np.random.default_rng(seed)
    samples = rng.random((40, 4)) @ rng.normal(size=(4, 60)) / 4 + 2 + 0.2 * rng.random((40, 60))
    owner, load = np.arange(40) % 8, samples.mean(axis=1)
    values = checkpoint_values(samples, owner, 8)
    limit = fair_limit(load, 1, 8, fairness)
    best = optimal_score(values, load, 1, limit)
    assert best is not None
    random = np.where(np.isfinite(values), values, 0).sum() / 7
    greedy = allocate(values, load, fairness=fairness)
    refined = refine(values, load, greedy, fairness=fairness)
    assert max(carried_load(load, p, 8).max() for p in (greedy, refined)) <= limit + 1e-9
    return (score(values, greedy) - best) / (random - best), (score(values, refined) - best) / (random - best)
