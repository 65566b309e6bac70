"""DLB-S: DLB-H, then swaps, and a search if the keys are few, once no single move helps (ours; the paper stops at DLB-H).

A swap of loads w1 > w2 between engines that differ by `gap` acts like the move of one key of load w1 - w2. All pairs of engines
are searched, since with few, heavy keys the way to the best assignment seldom leads through the least loaded engine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elasticity.balance.dlb import dlb_h
from elasticity.balance.search import assign
from elasticity.balance.view import BalanceDecision, BalanceLimits, Goal, Ints, Loads, LoadView, decided, eng_load, goal, imb_score

# Bounds on the work of a decision: with more keys under load than SWAPPED_KEYS, single moves are fine enough; only the PAIRED_ENGINES
# most and least loaded engines are paired; and later swaps are worth little.
SWAPPED_KEYS, PAIRED_ENGINES, MOST_SWAPS = 10_000, 16, 50
# Swaps can be stuck far from the best with at most this many keys under load; with more they hardly ever are.
SEARCHED_KEYS = 16


def dlb_s(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """DLB-H's assignment, improved by the swap that lowers imbScore the most until the goal is met or no swap helps.

    The paper's aims of few keys and bytes moved come second: imbScore is at most θ wherever an assignment reaches that, else
    within 5 % of the best.
    """
    first = dlb_h(view, limits)
    keys_map, loads = first.keys_map.copy(), view.keys_load
    if first.after_percent <= first.goal_percent or np.count_nonzero(loads) > SWAPPED_KEYS:
        return first
    if not goal(view, limits).due(eng_load(view.keys_map, loads, view.engines)):
        return first
    for _ in range(min(MOST_SWAPS, limits.max_moves - len(first.keys))):
        load = eng_load(keys_map, loads, view.engines)
        swap = _best(keys_map, loads, load) if imb_score(load) > first.goal_percent else None
        if swap is None:
            break
        for key, engine in swap:
            keys_map[key] = engine
    load = eng_load(keys_map, loads, view.engines)
    if imb_score(load) > first.goal_percent and np.count_nonzero(loads) <= SEARCHED_KEYS:
        mean, n = load.mean(), view.engines
        enough = n * mean**2 + (n - 1) * (first.goal_percent / 100 * mean) ** 2  # Σx² at the goal
        better = assign(keys_map, loads, n, enough)
        keys_map = keys_map if better is None else better
    return decided(view, keys_map, Goal(first.goal_percent, first.goal_percent, too_hot=first.too_hot))


def _best(keys_map: Ints, loads: Loads, load: npt.NDArray[np.float64]) -> list[tuple[int, int]] | None:
    """The (key, new engine) pairs of the best swap."""
    by_load = np.argsort(-load, kind="stable").tolist()
    best, swap = 0.0, None
    for a in by_load[:PAIRED_ENGINES]:
        for b in reversed(by_load[-PAIRED_ENGINES:]):
            gap = load[a] - load[b]
            if gap * gap / 4 <= best:  # no difference w gains more than w = gap / 2 would
                break
            mine, theirs = np.flatnonzero(keys_map == a), np.flatnonzero(keys_map == b)
            theirs = theirs[np.argsort(loads[theirs], kind="stable")]
            given, taken = loads[mine], np.append(0, loads[theirs])  # 0: a plain move
            at = np.clip(np.searchsorted(taken, given - gap / 2), 1, max(len(taken) - 1, 1))
            for near in (at - 1, np.minimum(at, len(taken) - 1)):
                w = given - taken[near]
                gain = w * (gap - w)
                i = int(gain.argmax()) if len(gain) else 0
                if len(gain) and gain[i] > best:
                    best = float(gain[i])
                    swap = [(int(mine[i]), b)] + ([(int(theirs[near[i] - 1]), a)] if near[i] else [])
    return swap
