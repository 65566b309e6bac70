"""The best assignment of a few keys, by branch and bound: reaches assignments that moves and swaps of single keys cannot."""

from __future__ import annotations

import numpy as np

from elasticity.balance.view import Ints, Loads, descending

# Search nodes visited, about 2 µs each: bounds the search whatever the loads are.
NODES = 20_000


def assign(keys_map: Ints, keys_load: Loads, engines: int, enough: float) -> Ints | None:
    """A keys_map whose sum of squared engine loads is at most `enough`, else the best found; None if nothing beats the given one.

    Keys are placed most loaded first and on the least loaded engine first, so the first assignment tried is LPTF's; of equally
    loaded engines only one is tried, the key's own if it is among them.
    """
    order = [k for k in descending(keys_load).tolist() if keys_load[k] > 0]
    weights = [float(keys_load[k]) for k in order]
    rest = np.append(np.cumsum(weights[::-1])[::-1], 0.0).tolist()
    load, placed = [0.0] * engines, [0] * len(order)
    best = float((np.bincount(keys_map, weights=keys_load, minlength=engines) ** 2).sum())
    found: list[int] | None = None
    nodes = 0

    def place(i: int) -> None:
        nonlocal best, found, nodes
        nodes += 1
        if i == len(order):
            best, found = sum(x * x for x in load), placed.copy()
            return
        tried: set[float] = set()
        for engine in sorted(range(engines), key=lambda e: (load[e], e != keys_map[order[i]], e)):
            if best <= enough or nodes >= NODES:
                return
            if load[engine] in tried:
                continue
            tried.add(load[engine])
            load[engine] += weights[i]
            if _least(load, rest[i + 1]) < best * (1 - 1e-12):
                placed[i] = engine
                place(i + 1)
            load[engine] -= weights[i]

    place(0)
    if found is None:
        return None
    better = keys_map.copy()
    better[order] = found
    return better


def _least(load: list[float], rest: float) -> float:
    """Lower bound of the sum of squares, as if `rest` could be divided at will: the least loaded engines are filled to one level."""
    rising, below = sorted(load), 0.0
    for n, x in enumerate(rising, 1):
        below += x
        level = (below + rest) / n
        if n == len(rising) or level <= rising[n]:
            return n * level * level + sum(y * y for y in rising[n:])
    raise AssertionError("the last engine ends the loop")
