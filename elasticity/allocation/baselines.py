"""The allocations that the greedy one is measured against: neither looks at loads."""

from __future__ import annotations

import math

import numpy as np

from elasticity.allocation.history import Flags, Ints
from elasticity.allocation.values import require_nodes


def allocate_random(owner: Ints, nodes: int, rng: np.random.Generator, *, copies: int = 1) -> Ints:
    """Each checkpoint on any node but its group's own, no two of a group on one."""
    return _deal(owner, nodes, rng, copies, math.inf)


def allocate_even(owner: Ints, nodes: int, rng: np.random.Generator, *, copies: int = 1) -> Ints:
    """The same, with at most ⌈checkpoints / nodes⌉ on a node; more only where the groups' own nodes leave no other way."""
    return _deal(owner, nodes, rng, copies, math.ceil(len(owner) * copies / nodes))


def _deal(owner: Ints, nodes: int, rng: np.random.Generator, copies: int, most: float) -> Ints:
    require_nodes(nodes, copies)
    held: Ints = np.zeros(nodes, np.int64)
    placement: Ints = np.full((len(owner), copies), -1)
    for g in rng.permutation(len(owner)):
        for copy in range(copies):
            allowed = np.ones(nodes, bool)
            allowed[[owner[g], *placement[g, :copy]]] = False
            room: Ints = np.flatnonzero(allowed & (held < most))
            if not len(room):
                room = _make_room(owner, placement, held, allowed, most)
            placement[g, copy] = node = rng.choice(room)
            held[node] += 1
    return placement


def _make_room(owner: Ints, placement: Ints, held: Ints, allowed: Flags, most: float) -> Ints:
    """Moves one checkpoint to a node that has room, away from one that is allowed; else the least filled allowed node."""
    for target in np.flatnonzero(held < most):
        free = (owner != target) & ~(placement == target).any(axis=1)
        movable = np.argwhere((placement >= 0) & allowed[placement] & free[:, None])
        if len(movable):
            h, copy = movable[0]
            source = placement[h, copy]
            placement[h, copy] = target
            held[source] -= 1
            held[target] += 1
            return np.array([source])
    nodes = np.flatnonzero(allowed)
    return nodes[[held[nodes].argmin()]]
