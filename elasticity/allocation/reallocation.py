"""Bring an aged placement back to within φ′ of a fresh one, by as few moves of checkpoints as possible."""

from __future__ import annotations

import math

import numpy as np

from elasticity.allocation.greedy import allocate, fair_limit
from elasticity.allocation.history import Floats, Ints
from elasticity.allocation.values import node_loads, score


def reallocate(values: Floats, load: Floats, placement: Ints, *, tolerance: float, fairness: float = math.inf) -> Ints:
    """A placement whose score exceeds that of a fresh allocation by at most `tolerance` (φ′) × the load of all checkpoints.

    Scores lie between −1 and +1 times that load. The checkpoints that improve the score most go first, each to its place in the
    fresh allocation. A checkpoint that would put its target above the limit stays; if the bound cannot be met without those, the
    whole fresh allocation is returned. A checkpoint on its own group's node has infinite value there and always moves.
    """
    groups, copies = placement.shape
    fresh = allocate(values, load, copies=copies, fairness=fairness)
    bound = score(values, fresh) + tolerance * float(load.sum()) * copies
    result = placement.copy()
    limit = fair_limit(load, copies, values.shape[1], fairness)
    carried = carried_load(load, placement, values.shape[1])
    moves = _moves(values, placement, fresh)
    lost = sum(math.isinf(gain) for gain, *_ in moves)
    for _, g, copy, target in moves[:lost]:
        carried[target] += load[g]
        carried[result[g, copy]] -= load[g]
        result[g, copy] = target
    now = score(values, result)
    for gain, g, copy, target in moves[lost:]:
        if now <= bound:
            break
        if gain > 0 and carried[target] + load[g] <= limit:
            carried[target] += load[g]
            carried[result[g, copy]] -= load[g]
            result[g, copy] = target
            now -= gain
    return result if now <= bound else fresh


def _moves(values: Floats, placement: Ints, fresh: Ints) -> list[tuple[float, int, int, int]]:
    """(gain in score, group, copy, node), largest gain first; copies that already lie on nodes of the fresh allocation stay."""
    moves = []
    for g in np.flatnonzero((np.sort(placement, axis=1) != np.sort(fresh, axis=1)).any(axis=1)):
        row = values[g].astype(np.float64)
        leaving = [c for c in range(placement.shape[1]) if placement[g, c] not in fresh[g]]
        targets = sorted(set(fresh[g]) - set(placement[g]), key=lambda n: row[n])
        leaving.sort(key=lambda c: -row[placement[g, c]])
        moves += [(row[placement[g, c]] - row[n], int(g), c, int(n)) for c, n in zip(leaving, targets, strict=True)]
    return sorted(moves, key=lambda m: (-m[0], *m[1:]))


def carried_load(load: Floats, placement: Ints, nodes: int) -> Floats:
    """The load, per node, of the groups whose checkpoints it holds."""
    return sum((node_loads(load, placement[:, c], nodes) for c in range(placement.shape[1])), np.zeros(nodes))
