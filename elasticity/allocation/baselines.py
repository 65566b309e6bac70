"""Baselines for the greedy allocation: random and even. Neither looks at loads."""

from __future__ import annotations

import math

import numpy as np

from elasticity.allocation.history import Flags, Ints
from elasticity.allocation.values import require_nodes


def allocate_random(owner: Ints, nodes: int, rng: np.random.Generator, *, copies: int = 1) -> Ints:
    """Place each checkpoint on a random node other than its group's own, no two of a group on the same node."""
    return _deal(owner, nodes, rng, copies, math.inf)


def allocate_even(owner: Ints, nodes: int, rng: np.random.Generator, *, copies: int = 1) -> Ints:
    """Like `allocate_random`, with at most ⌈checkpoints / nodes⌉ on a node; more only where the groups' own nodes leave no other way."""
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
    """Move one checkpoint from an allowed node to one with room and return the source; else return the least filled allowed node."""
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
