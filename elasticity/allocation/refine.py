"""Refine the greedy allocation by moves and swaps of checkpoints while one lowers the score. Not part of the paper.

Under a fairness limit the greedy allocation leaves a few percent of the possible gain; refining leaves next to nothing. A pass looks
at every pair of checkpoints: it suits some thousands of them, not a hundred thousand.
"""

from __future__ import annotations

import math

import numpy as np

from elasticity.allocation.greedy import fair_limit
from elasticity.allocation.history import Floats, Ints
from elasticity.allocation.reallocation import carried_load

# Each pass lowers the score; the gain left after this many is less than the noise of the loads.
PASSES = 10
_LEAST_GAIN = 1e-9


def refine(values: Floats, load: Floats, placement: Ints, *, fairness: float = math.inf) -> Ints:
    """A local optimum: a placement of at most the same score that keeps both constraints of `allocate` where the given one does."""
    groups, copies = placement.shape
    limit = fair_limit(load, copies, values.shape[1], fairness)
    placement, carried = placement.copy(), carried_load(load, placement, values.shape[1])
    for _ in range(PASSES):
        changed = [_improve(values, load, placement, carried, limit, g, c) for g in range(groups) for c in range(copies)]
        if not any(changed):
            break
    return placement


def _improve(values: Floats, load: Floats, placement: Ints, carried: Floats, limit: float, g: int, copy: int) -> bool:
    """Carry out the best step for one checkpoint; False if none helps."""
    here, row = int(placement[g, copy]), values[g].astype(np.float64)
    free = np.isfinite(row)
    free[placement[g]] = False
    move = np.where(free & (carried + load[g] <= limit), row[here] - row, -np.inf)
    # Swaps with every checkpoint, groups × copies, whose group may lie here and whose node this checkpoint may lie on.
    change = load[:, None] - load[g]
    welcome = np.isfinite(values[:, here]) & ~(placement == here).any(axis=1)
    fair = (carried[here] + change <= limit) & (carried[placement] - change <= limit)
    theirs = np.take_along_axis(values, placement, axis=1).astype(np.float64)
    possible = welcome[:, None] & free[placement] & fair
    swap = np.full(placement.shape, -np.inf)
    swap[possible] = (row[here] - row[placement] + theirs - values[:, here][:, None].astype(np.float64))[possible]
    node, (h, other) = int(move.argmax()), np.unravel_index(swap.argmax(), swap.shape)
    if max(move[node], swap[h, other]) <= _LEAST_GAIN:
        return False
    if swap[h, other] > move[node]:
        node = int(placement[h, other])
        placement[h, other] = here
        carried[here] += load[h]
        carried[node] -= load[h]
    placement[g, copy] = node
    carried[node] += load[g]
    carried[here] -= load[g]
    return True
