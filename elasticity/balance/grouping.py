"""KG: static key grouping, and the assignment that every policy starts from (paper 2, sections 3.3 and 4)."""

from __future__ import annotations

import numpy as np

from elasticity.balance.view import BalanceDecision, BalanceLimits, Ints, LoadView, decided, goal


def start(keys: int, engines: int) -> Ints:
    """Key k on engine k mod engines, shape (keys,)."""
    return np.arange(keys, dtype=np.int32) % engines


def kg(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """Leave every key where it is."""
    return decided(view, view.keys_map, goal(view, limits))
