"""References for the allocation: algorithm 3 of the paper word for word, and the exact optimum of small cases."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from elasticity.allocation.history import Floats, Ints


def allocate_literally(values: Floats, load: Floats, copies: int, limit: float) -> Ints:
    """Sort all checkpoints again after each step, without heaps and shortcuts."""
    groups, nodes = values.shape
    placement = np.full((groups, copies), -1)
    # The i-th best nodes are all nodes with the i-th best value; a group's own node is not among them.
    levels = [sorted({float(v) for v in row if np.isfinite(v)}) for row in values]
    waiting = [(g, c, 0) for g in range(groups) for c in range(copies)]

    def gap(g: int, i: int) -> float:
        return levels[g][i + 1] - levels[g][i] if i + 1 < len(levels[g]) else 0.0

    def carried(node: int) -> float:
        return float(sum(load[g] for g in range(groups) for n in placement[g] if n == node))

    while waiting:
        waiting.sort(key=lambda cp: (-gap(cp[0], cp[2]), cp[:2]))
        g, c, i = waiting.pop(0)
        allowed = [n for n in range(nodes) if np.isfinite(values[g, n]) and n not in placement[g]]
        if i == len(levels[g]):
            placement[g, c] = min(allowed, key=lambda n: (values[g, n], carried(n)))
            continue
        fair = [n for n in allowed if values[g, n] == levels[g][i] and carried(n) + load[g] <= limit]
        if fair:
            placement[g, c] = min(fair, key=carried)
        else:
            waiting.append((g, c, i + 1))
    return placement


def optimal_score(values: Floats, load: Floats, copies: int, limit: float) -> float | None:
    """The least score under both constraints, by an integer linear program; None if they cannot be met together."""
    groups, nodes = values.shape
    cost = np.where(np.isfinite(values), values, 0).astype(np.float64).ravel()
    each_group = np.kron(np.eye(groups), np.ones(nodes))
    each_node = np.kron(load, np.eye(nodes))
    found = milp(
        cost,
        constraints=[LinearConstraint(each_group, copies, copies), LinearConstraint(each_node, -np.inf, limit)],
        integrality=np.ones(groups * nodes),
        bounds=Bounds(0, np.isfinite(values).ravel().astype(float)),  # at most one checkpoint of a group on a node, none on its own
    )
    return float(found.fun) if found.success else None
