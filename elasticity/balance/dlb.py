"""DLB-H and DLB-L: single keys move from the most loaded engine to the least loaded one (paper 2, section 3.2, algorithm 1).

Moving a key of load w from an engine of load a to one of load b lowers imbScore exactly if 0 < w < a - b: the mean stays, and
the sum of squares changes by 2w(w - (a - b)). So no move has to be tried out, and an engine without a key that helps needs no
second look until it is given a key, since the least load never falls.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from elasticity.balance.view import BalanceDecision, BalanceLimits, Goal, Ints, LoadView, decided, eng_load, goal

# The order in which to try the first n of an engine's keys, sorted by load.
Order = Callable[[int], Iterable[int]]


def dlb_h(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """Pick heavy: take the most loaded key that helps from the most loaded engine. Few moves."""
    return decided(view, *rebalance(view, limits, lambda n: range(n - 1, -1, -1)))


def dlb_l(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """Pick light: take the least loaded key from the most loaded engine. Finer, with more moves.

    It does not relieve the busiest engine beyond θ: with light keys that takes thousands of moves.
    """
    return decided(view, *rebalance(view, limits, range, to_peak=False))


def rebalance(view: LoadView, limits: BalanceLimits, order: Order, to_peak: bool = True) -> tuple[Ints, Goal]:
    """Run algorithm 1; returns the keys_map that it ends with, and the goal it aimed for.

    Ties between engines go to the lower number, for most and for least loaded; equally loaded keys are ordered by number. Ours, and
    left out with `slack=None`: engines are ranked by their load above the best they can have (their hottest key, or `even_load`),
    else an engine with a hot key would give away all its other keys, one by one, before any other engine is relieved; and moves go
    on below θ while the busiest engine can be brought to `aim.peak`.
    """
    aim = goal(view, limits) if to_peak else replace(goal(view, limits), start_peak=float("inf"), peak=float("inf"))
    loads = eng_load(view.keys_map, view.keys_load, view.engines)
    load: list[float] = loads.tolist()
    n, total = view.engines, float(loads.sum())
    keys_map = view.keys_map.copy()
    if not aim.due(loads):
        return keys_map, aim
    # n Σx² - (Σx)², exact for integers, and its value at the goal: imbScore is above the goal while spread > enough.
    spread = n * float((loads**2).sum()) - total**2
    enough = (aim.percent / 100 * total) ** 2 * (n - 1) / n
    keys = _Keys(view, limits)
    hot = {k: view.keys_load[k].item() for k in aim.hot}
    at_best = [aim.even_load] * n if hot else [0.0] * n  # load of each engine at best, as long as its hottest key stays
    for key in reversed(hot):
        at_best[keys_map[key]] = hot[key]
    sources = [(at_best[e] - x, e) for e, x in enumerate(load)]
    sinks = [(x, e) for e, x in enumerate(load)]
    heapq.heapify(sources)
    heapq.heapify(sinks)
    over = {e for e, x in enumerate(load) if x > aim.peak}
    for _ in range(limits.max_moves):
        while sinks[0][0] != load[sinks[0][1]]:
            heapq.heappop(sinks)
        least, e_min = sinks[0]
        key = None
        while sources and (spread > enough or over):
            surplus, e_loaded = sources[0]
            if surplus == at_best[e_loaded] - load[e_loaded] and (spread > enough or e_loaded in over):
                key = keys.take(e_loaded, load[e_loaded] - least, order)
                if key is not None:
                    break
                if e_loaded in over:
                    over = set()  # the busiest cannot be relieved: relieving others would not help throughput
            heapq.heappop(sources)
        if key is None:
            break
        w = view.keys_load[key].item()
        spread -= 2 * n * w * (load[e_loaded] - least - w)
        keys.give(e_min, key)
        keys_map[key] = e_min
        load[e_loaded], load[e_min] = load[e_loaded] - w, least + w
        for e in (e_loaded, e_min):
            if key in hot:
                at_best[e] = max((x for k, x in hot.items() if keys_map[k] == e), default=aim.even_load)
            heapq.heappush(sources, (at_best[e] - load[e], e))
            heapq.heappush(sinks, (load[e], e))
        if load[e_loaded] <= aim.peak:
            over.discard(e_loaded)
    return keys_map, aim


class _Keys:
    """Each engine's keys that may move, by (rank, key); rank is the load less the weight of the state's bytes. Sorted on demand."""

    def __init__(self, view: LoadView, limits: BalanceLimits) -> None:
        self._load = view.keys_load
        self._rank: npt.NDArray[np.floating] | npt.NDArray[np.integer] = view.keys_load
        if view.state_bytes is not None and limits.events_per_byte:
            self._rank = view.keys_load - limits.events_per_byte * view.state_bytes
        small = np.uint16 if view.engines < 2**16 else np.int64  # numpy sorts 16 bits by radix
        self._by_engine = np.argsort(view.keys_map.astype(small), kind="stable")
        self._ends = np.cumsum(np.bincount(view.keys_map, minlength=view.engines)).tolist()
        self._sorted: dict[int, tuple[list[float], list[int]]] = {}
        self._given: dict[int, list[int]] = {}  # keys given to engines whose keys are not sorted yet

    def take(self, engine: int, gap: float, order: Order) -> int | None:
        """Remove and return the first key in `order` whose load is below the gap; None if there is none."""
        ranks, keys = self._sorted[engine] if engine in self._sorted else self._sort(engine)
        for i in order(bisect_left(ranks, gap)):
            if self._load[keys[i]] < gap:
                ranks.pop(i)
                return keys.pop(i)
        return None

    def give(self, engine: int, key: int) -> None:
        """Record that the engine has the key now."""
        if engine not in self._sorted:
            self._given.setdefault(engine, []).append(key)
            return
        ranks, keys = self._sorted[engine]
        rank = self._rank[key].item()
        i = bisect_left(ranks, rank)
        while i < len(keys) and ranks[i] == rank and keys[i] < key:
            i += 1
        ranks.insert(i, rank)
        keys.insert(i, key)

    def _sort(self, engine: int) -> tuple[list[float], list[int]]:
        own = self._by_engine[self._ends[engine - 1] if engine else 0 : self._ends[engine]]
        if engine in self._given:
            own = np.sort(np.append(own, self._given.pop(engine)))
        own = own[self._rank[own] > 0]
        own = own[np.argsort(self._rank[own], kind="stable")]
        self._sorted[engine] = self._rank[own].tolist(), own.tolist()
        return self._sorted[engine]
