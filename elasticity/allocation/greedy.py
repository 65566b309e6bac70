"""The greedy allocation (algorithm 3): the checkpoint that has most to lose by not getting its best node comes first.

Cost: one step per checkpoint, and one more each time the nodes that it wants have no room left.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from elasticity.allocation.history import Flags, Floats, Ints
from elasticity.allocation.values import require_nodes
from udo_protocol.errors import UsageError

# Rows searched for their two best values at a time: 4 MB of copies at 1,000 nodes.
_BLOCK_ROWS = 1_024
_TRIED_ALL = math.inf


def fair_limit(load: Floats, copies: int, nodes: int, fairness: float) -> float:
    """The checkpoint load a node may carry: the fair share times 1 + `fairness` (φ). Infinite φ is no limit."""
    return (1 + fairness) * float(load.sum(dtype=np.float64)) * copies / nodes


def allocate(values: Floats, load: Floats, *, copies: int = 1, fairness: float = math.inf) -> Ints:
    """Place `copies` checkpoints per group; `values` by `checkpoint_values`, `load` per group.

    1. No checkpoint lies on its group's own node, no two of a group on one node.
    2. The load of the groups whose checkpoints a node holds stays within `fair_limit`. A checkpoint that finds no such node
       goes to the node of least value, then least checkpoint load, whatever that node holds.
    Among nodes of equal value, the one with the least checkpoint load is taken.
    """
    groups, nodes = values.shape
    require_nodes(nodes, copies)
    if fairness < 0:
        raise UsageError(f"fairness is the share a node may carry above the fair one, at least 0; got {fairness}")
    limit = fair_limit(load, copies, nodes, fairness)
    carried = np.zeros(nodes)
    placement = np.full((groups, copies), -1)
    best, gaps = _best_and_gap(values)
    # Most to lose first. Per checkpoint: its loss if refused now (negated), group, copy, and the value it tries for next.
    queue = [(-gap, g, copy, value) for g, (value, gap) in enumerate(zip(best, gaps, strict=True)) for copy in range(copies)]
    heapq.heapify(queue)
    while queue:
        _, g, copy, value = heapq.heappop(queue)
        row = values[g]
        allowed = np.isfinite(row)
        allowed[placement[g, placement[g] >= 0]] = False
        fair = allowed & (carried + load[g] <= limit)
        wanted = fair & (row == value) if value != _TRIED_ALL else allowed & (row == row[allowed].min())
        candidates = np.flatnonzero(wanted)
        if len(candidates):
            node = candidates[np.argmin(carried[candidates])]
            placement[g, copy] = node
            carried[node] += load[g]
        else:
            gap, value = _next_best(row, fair, value)
            heapq.heappush(queue, (-gap, g, copy, value))
    return placement


def _next_best(row: Floats, fair: Flags, refused: float) -> tuple[float, float]:
    """The next value above the refused one, and the gap after it, by which the checkpoint is ranked again.

    Values of full nodes are skipped (a full node stays full). If they were tried one by one, the checkpoint would wait for its turn
    at each of them: its rank is the smallest gap on the way.
    """
    higher = row > refused
    possible = row[higher & fair]
    if not len(possible):
        return 0.0, _TRIED_ALL
    value = float(possible.min())
    values = np.sort(row[higher & np.isfinite(row)]).astype(np.float64)
    end = int(np.searchsorted(values, value, side="right"))
    if end == len(values):
        return 0.0, value  # after the last one there is nothing to lose
    gaps = np.diff(values[: end + 1])
    return float(gaps[gaps > 0].min()), value


def _best_and_gap(values: Floats) -> tuple[list[float], list[float]]:
    """The best value of each group, and the gap to the next different one; 0 if there is none."""
    best = values.min(axis=1).astype(np.float64)
    gaps = np.empty(len(values))
    for start in range(0, len(values), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        others = np.where(values[rows] > values[rows].min(axis=1, keepdims=True), values[rows], np.inf)
        gaps[rows] = others.min(axis=1).astype(np.float64) - best[rows]
    gaps[np.isinf(gaps)] = 0.0
    return best.tolist(), gaps.tolist()
