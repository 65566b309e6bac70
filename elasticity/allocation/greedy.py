"""The greedy allocation (algorithm 3): the checkpoint that has most to lose by not getting its best node comes first.

Cost: one step per checkpoint, and one more each time a node has no room for it any more.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from elasticity.allocation.history import Flags, Floats, Ints
from elasticity.allocation.values import require_nodes
from udo_protocol.errors import UsageError

# Rows whose two best values are looked for at a time: 4 MB of copies at 1,000 nodes.
_BLOCK_ROWS = 1_024
_TRIED_ALL = math.inf


def fair_limit(load: Floats, copies: int, nodes: int, fairness: float) -> float:
    """The checkpoint load a node may carry: the fair share and `fairness` (φ) of it more. Infinite φ is no limit."""
    return (1 + fairness) * float(load.sum(dtype=np.float64)) * copies / nodes


def allocate(values: Floats, load: Floats, *, copies: int = 1, fairness: float = math.inf) -> Ints:
    """The placement of `copies` checkpoints per group; `values` by `checkpoint_values`, `load` per group.

    1. Never on the group's own node, never two of a group on one node.
    2. The load of the groups whose checkpoints a node holds stays within `fair_limit`. A checkpoint that finds no such node
       goes to the node of least value, then least checkpoint load, whatever that node holds.
    Nodes of equal value: the one with the least checkpoint load.
    """
    groups, nodes = values.shape
    require_nodes(nodes, copies)
    if fairness < 0:
        raise UsageError(f"fairness is the share a node may carry above the fair one, at least 0; got {fairness}")
    limit = fair_limit(load, copies, nodes, fairness)
    carried = np.zeros(nodes)
    placement = np.full((groups, copies), -1)
    best, gaps = _best_and_gap(values)
    # Most to lose first. Of a checkpoint: what it loses if refused now, group, copy, and the value it tries for next.
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
    """The next value above the refused one, and the gap behind it, by which the checkpoint is ranked again.

    Values that no node can give any more are passed over (a node that has no room now never has any later). One by one, the
    checkpoint would have waited at each of them for its turn: its rank is the smallest gap on the way.
    """
    higher = row > refused
    possible = row[higher & fair]
    if not len(possible):
        return 0.0, _TRIED_ALL
    value = float(possible.min())
    values = np.sort(row[higher & np.isfinite(row)]).astype(np.float64)
    end = int(np.searchsorted(values, value, side="right"))
    if end == len(values):
        return 0.0, value  # behind the last one there is nothing to lose
    gaps = np.diff(values[: end + 1])
    return float(gaps[gaps > 0].min()), value


def _best_and_gap(values: Floats) -> tuple[list[float], list[float]]:
    """Per group its best value, and the gap to the next one that differs; a gap of 0 if there is none."""
    best = values.min(axis=1).astype(np.float64)
    gaps = np.empty(len(values))
    for start in range(0, len(values), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        others = np.where(values[rows] > values[rows].min(axis=1, keepdims=True), values[rows], np.inf)
        gaps[rows] = others.min(axis=1).astype(np.float64) - best[rows]
    gaps[np.isinf(gaps)] = 0.0
    return best.tolist(), gaps.tolist()
