"""Plans for relieving overloaded nodes: key groups move to nodes that hold their checkpoints, if those have room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from elasticity.allocation.history import Floats, Ints
from elasticity.allocation.values import node_loads


@dataclass(frozen=True)
class Move:
    """The move of a key group from one node to another; `assisted`: the target holds a checkpoint of it."""

    group: int
    source: int
    target: int
    assisted: bool


# (loads per group, current owners and placement, the load a node may have at most, number of nodes) → moves.
Planner = Callable[[Floats, Ints, Ints, float, int], tuple[Move, ...]]


def relieve(loads: Floats, owner: Ints, placement: Ints, limit: float, nodes: int) -> tuple[Move, ...]:
    """Plan moves until no node is above the limit, or those above it can give nothing away; no node is brought above it.

    The most loaded node gives first: groups that have a checkpoint on a node with room (and move there) before any other; among
    equals the smallest group that ends the overload, else the largest.
    """
    owner, load = owner.copy(), node_loads(loads, owner, nodes)
    moves: list[Move] = []
    stuck = np.zeros(nodes, bool)
    while len(sources := np.flatnonzero((load > limit) & ~stuck)):
        source = int(sources[load[sources].argmax()])
        groups = np.flatnonzero((owner == source) & (loads > 0))
        move = _first_of(_assisted(groups, source, loads, load, placement, limit), loads, load[source] - limit) or _first_of(
            _direct(groups, source, loads, load, limit), loads, load[source] - limit
        )
        if move is None:
            stuck[source] = True
            continue
        moves.append(move)
        owner[move.group] = move.target
        load[source] -= loads[move.group]
        load[move.target] += loads[move.group]
    return tuple(moves)


def _assisted(groups: Ints, source: int, loads: Floats, load: Floats, placement: Ints, limit: float) -> Iterator[Move]:
    for g in groups:
        hosts = [int(n) for n in placement[g] if n != source and load[n] + loads[g] <= limit]
        if hosts:
            yield Move(int(g), source, min(hosts, key=lambda n: load[n]), True)


def _direct(groups: Ints, source: int, loads: Floats, load: Floats, limit: float) -> Iterator[Move]:
    target = int(load.argmin())
    for g in groups:
        if target != source and load[target] + loads[g] <= limit:
            yield Move(int(g), source, target, False)


def _first_of(moves: Iterator[Move], loads: Floats, excess: float) -> Move | None:
    """The move of the smallest group that is at least the excess, else of the largest group."""
    return min(moves, key=lambda m: (loads[m.group] < excess, abs(loads[m.group] - excess)), default=None)


def pair(loads: Floats, owner: Ints, placement: Ints, limit: float, nodes: int) -> tuple[Move, ...]:
    """One move per overloaded node, as in the paper's experiments (repartitioning by Flux, its reference 18).

    Nodes are sorted by load; the i-th most loaded gives to the i-th least loaded and to no other: groups with a checkpoint there
    before any other, and among equals the one that brings the two loads closest together.
    """
    load = node_loads(loads, owner, nodes)
    order = np.argsort(-load, kind="stable")
    moves = []
    for source, target in zip(order[: nodes // 2].tolist(), order[::-1].tolist(), strict=False):
        difference = load[source] - load[target]
        groups = np.flatnonzero((owner == source) & (loads > 0) & (loads < difference) & (load[target] + loads <= limit))
        if load[source] <= limit or not len(groups):
            continue
        assisted = (placement[groups] == target).any(axis=1)
        best = np.lexsort((np.abs(loads[groups] - difference / 2), ~assisted))[0]
        moves.append(Move(int(groups[best]), source, target, bool(assisted[best])))
    return tuple(moves)


def usable(loads: Floats, owner: Ints, placement: Ints, limit: float, nodes: int) -> tuple[int, int]:
    """Count (usable, all) checkpoints of groups on overloaded nodes; usable: its node could take the group without overload."""
    load = node_loads(loads, owner, nodes)
    groups = np.flatnonzero(load[owner] > limit)
    hosts = placement[groups]
    fits = (load[hosts] + loads[groups, None] <= limit) & (hosts != owner[groups, None])
    return int(fits.sum()), int(hosts.size)


def apply(moves: tuple[Move, ...], owner: Ints, placement: Ints) -> tuple[Ints, Ints]:
    """Owners and placement after the moves.

    An assisted move turns the checkpoint into state, and the state left behind into a checkpoint. A direct one leaves checkpoints
    where they are.
    """
    owner, placement = owner.copy(), placement.copy()
    for m in moves:
        owner[m.group] = m.target
        placement[m.group, placement[m.group] == m.target] = m.source
    return owner, placement
