"""The value of a checkpoint on each node: the correlation of its group's load with the node's, times the group's load. Lower is better.

A node whose load falls when the group's rises has room when the group has to move.
"""

from __future__ import annotations

import numpy as np

from elasticity.allocation.history import Floats, Ints
from udo_protocol.errors import UsageError

# A standard deviation below this share of the mean is a rounding error of 32-bit samples: the load is constant.
_CONSTANT = 1e-5
# Standard errors (1/√samples) from zero that make a correlation significant: chance alone reaches it once in 370 times.
_NOISE = 3.0
# Rows computed at a time, so that the result is the only large array: 4 MB at 1,000 nodes.
_BLOCK_ROWS = 1_024


def node_loads(loads: Floats, owner: Ints, nodes: int) -> Floats:
    """Sum of the loads of each node's groups; `loads` is per group, or groups × samples."""
    total: Floats = np.zeros((nodes, *loads.shape[1:]))
    np.add.at(total, owner, loads)
    return total


def checkpoint_values(samples: Floats, owner: Ints, nodes: int) -> Floats:
    """Groups × nodes, 32 bits: corr(load of the group, load of the node's groups) · mean load of the group.

    Infinite on the group's own node, where its checkpoint would be lost together with it. Zero where either load is constant, and
    on empty nodes, where nothing can rise or fall with the group. A correlation that may be chance with this many samples is zero,
    too (`_NOISE`): otherwise all groups that share a rhythm would find the same one of several idle nodes best.
    """
    group, node = _standardised(samples), _standardised(node_loads(samples, owner, nodes))
    load = samples.mean(axis=1, dtype=np.float64).astype(np.float32)
    values = np.empty((len(group), nodes), np.float32)
    for start in range(0, len(group), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        correlation = np.clip(group[rows] @ node.T, -1, 1)
        correlation[np.abs(correlation) < _NOISE / np.sqrt(samples.shape[1])] = 0
        np.multiply(correlation, load[rows, None], out=values[rows])
    values[np.arange(len(values)), owner] = np.inf
    return values


def _standardised(series: Floats) -> Floats:
    """Rows of mean 0 and length 1, so that the product of two is their correlation; a constant row becomes zeros."""
    mean = series.mean(axis=1, keepdims=True, dtype=np.float64)
    centred = series - mean
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    constant = length <= _CONSTANT * np.sqrt(series.shape[1]) * np.abs(mean)
    length[constant] = np.inf
    standardised: Floats = (centred / length).astype(np.float32)
    return standardised


def score(values: Floats, placement: Ints) -> float:
    """Sum of the values of all checkpoints, which the allocation minimises."""
    return float(np.take_along_axis(values, placement, axis=1).sum(dtype=np.float64))


def require_nodes(nodes: int, copies: int) -> None:
    """Raise UsageError unless a group and its checkpoints can have a node each."""
    if copies >= nodes:
        raise UsageError(f"a key group and its {copies} checkpoints lie on {copies + 1} nodes; there are {nodes}: add nodes, or keep fewer")
