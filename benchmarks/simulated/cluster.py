"""A large cluster under the balancing policy: key groups whose load drifts, flares up and dies down, and nodes that are lost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from elasticity import policies
from elasticity.balance.grouping import start
from elasticity.balance.view import BalanceLimits, LoadView, eng_load, imb_score

NODES, GROUPS = 1_000, 100_000
DECIDE_S = 60.0
# The events/s of a group are log-normal: most have few, some many; DRIFT is the drift of the logarithm per hour.
MEDIAN_PER_S, SPREAD, DRIFT = 10.0, 1.0, 0.3
# Each minute some groups flare up, for about a quarter of an hour; a node is lost each hour and its groups restart elsewhere.
FLARES, FLARE, FLARE_ENDS = 20, 10.0, 1 / 15
# The most groups that a round moves.
MOST_MOVES = 1_000


@dataclass(frozen=True)
class ClusterFigures:
    """The moves, the imbalance in percent after decisions, and the decisions' processor time."""

    nodes: int
    groups: int
    hours: float
    moves_per_hour: int
    rounds_without_a_move_percent: float
    imbalance_mean: float
    imbalance_max: float
    decision_ms_p50: float
    decision_ms_max: float


def play(policy: str, hours: float, seed: int) -> ClusterFigures:
    """Simulate this many hours."""
    rng, decide = np.random.default_rng(seed), policies.find("balance", policy)
    log_rate, flared = rng.normal(0, SPREAD, GROUPS), np.zeros(GROUPS, bool)
    keys_map, limits, steps = start(GROUPS, NODES), BalanceLimits(max_moves=MOST_MOVES), int(hours * 3600 / DECIDE_S)
    moves, scores, took = [], [], []
    for i in range(steps):
        log_rate += rng.normal(0, DRIFT * np.sqrt(DECIDE_S / 3600), GROUPS)
        log_rate *= 1 - 0.5 * DRIFT**2 / SPREAD**2 * DECIDE_S / 3600  # keep the spread constant
        flared &= rng.random(GROUPS) > FLARE_ENDS
        flared[rng.integers(0, GROUPS, FLARES)] = True
        load = rng.poisson(MEDIAN_PER_S * DECIDE_S * np.exp(log_rate) * np.where(flared, FLARE, 1.0))
        if i and i % round(3600 / DECIDE_S) == 0:  # failover: another node takes the groups of the lost one, which comes back empty
            keys_map = np.where(keys_map == rng.integers(NODES), rng.integers(NODES), keys_map).astype(keys_map.dtype)
        begun = time.thread_time()
        decision = decide(LoadView(keys_map, load, NODES), limits)
        took.append(1000 * (time.thread_time() - begun))
        moves.append(len(decision.keys))
        keys_map = decision.keys_map
        scores.append(imb_score(eng_load(keys_map, load, NODES)))
    settled = slice(min(10, steps // 2), None)  # the first decisions even out the imbalance of k mod n
    return ClusterFigures(
        nodes=NODES,
        groups=GROUPS,
        hours=hours,
        moves_per_hour=round(float(np.sum(moves[settled])) / (len(moves[settled]) * DECIDE_S / 3600)),
        rounds_without_a_move_percent=round(100 * float(np.mean(np.array(moves[settled]) == 0)), 1),
        imbalance_mean=round(float(np.mean(scores[settled])), 2),
        imbalance_max=round(float(np.max(scores[settled])), 2),
        decision_ms_p50=round(float(np.median(took)), 1),
        decision_ms_max=round(float(np.max(took)), 1),
    )
