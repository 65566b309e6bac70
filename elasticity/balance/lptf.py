"""LPTF: longest processing time first, a global re-assignment (paper 2, sections 4 and 5). A baseline: it moves most keys."""

from __future__ import annotations

import heapq

from elasticity.balance.view import BalanceDecision, BalanceLimits, LoadView, decided, descending, eng_load, goal


def lptf(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """If balancing is due, assign every key, most loaded first, to the engine that is least loaded so far (the lower number if equal).

    Keys without load stay: they would all go to one engine.
    """
    aim = goal(view, limits)
    if not aim.due(eng_load(view.keys_map, view.keys_load, view.engines)):
        return decided(view, view.keys_map, aim)
    keys_map = view.keys_map.copy()
    engines = [(0.0, e) for e in range(view.engines)]
    for key in descending(view.keys_load).tolist():
        if not view.keys_load[key]:
            break
        load, engine = engines[0]
        keys_map[key] = engine
        heapq.heapreplace(engines, (load + float(view.keys_load[key]), engine))
    return decided(view, keys_map, aim)
