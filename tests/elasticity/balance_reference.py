"""The references for balancing policies: the paper's algorithm taken literally, and exact optima of small cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np


def above(load: Sequence[int], theta_percent: int) -> bool:
    """Whether imbScore > θ, in integers."""
    n, total = len(load), sum(load)
    return 10**4 * n * (n * sum(x * x for x in load) - total**2) > theta_percent**2 * (n - 1) * total**2


def algorithm_1(
    keys_map: list[int],
    keys_load: list[int],
    engines: int,
    theta_percent: int,
    choose: Callable[[Iterable[tuple[int, int]]], tuple[int, int]],
) -> list[int]:
    """Paper 2, algorithm 1, trying every candidate: `choose` takes the most (max) or the least loaded (min) of the keys that help."""

    def loads(assignment: list[int]) -> list[int]:
        return [sum(w for k, w in enumerate(keys_load) if assignment[k] == e) for e in range(engines)]

    def spread(assignment: list[int]) -> int:
        return sum(x * x for x in loads(assignment))  # the mean is constant, so imbScore grows with this sum

    keys_map = list(keys_map)
    while above(loads(keys_map), theta_percent):
        load = loads(keys_map)
        e_min = min(range(engines), key=lambda e: (load[e], e))
        for e_loaded in sorted(range(engines), key=lambda e: (-load[e], e)):
            helpful = []
            for k in (k for k in range(len(keys_map)) if keys_map[k] == e_loaded):
                moved = [*keys_map[:k], e_min, *keys_map[k + 1 :]]
                if spread(moved) < spread(keys_map):
                    helpful.append((keys_load[k], k))
            if helpful:
                keys_map[choose(helpful)[1]] = e_min
                break
        else:
            break
    return keys_map


def optimum_percent(keys_load: Sequence[int], engines: int) -> float:
    """The lowest imbScore of any assignment, by dynamic programming over the loads of all engines but the last.

    The sum of the loads must be small: memory is (sum + 1) ** (engines - 1) bits.
    """
    total = sum(keys_load)
    reachable = np.zeros((total + 1,) * (engines - 1), bool)
    reachable[(0,) * (engines - 1)] = True
    for w in keys_load:
        before = reachable.copy()  # the key on the last engine
        if w == 0:
            continue
        for axis in range(engines - 1):
            to = tuple(slice(w, None) if a == axis else slice(None) for a in range(engines - 1))
            since = tuple(slice(None, -w) if a == axis else slice(None) for a in range(engines - 1))
            reachable[to] |= before[since]
    loads = np.argwhere(reachable)
    loads = np.column_stack([loads, total - loads.sum(axis=1)])
    return float((100 * loads.std(axis=1, ddof=1) / loads.mean(axis=1)).min())
