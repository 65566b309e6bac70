"""The nodes of a deployment's slots when slots are added or removed, or a node is drained.

Pure functions from one placement to the next. Only slots without key groups come and go; groups are moved before (placements.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from registry.domain import replicas
from udo_protocol import ranges
from udo_protocol.errors import Conflict
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.placement import Placement


def placed(nodes: Sequence[str], slots: int) -> tuple[str, ...]:
    """The node of each slot: evenly over these nodes."""
    return tuple(nodes[slot % len(nodes)] for slot in range(slots))


def grown(now: Placement, slots: int, nodes: Sequence[str], key_groups: int, disks: Mapping[str, str]) -> Placement:
    """The placement with this many slots in all: new ones go to those of `nodes` with the fewest. They have no key groups yet."""
    there, ordinals = list(now.nodes), list(now.ordinals or ())
    while len(there) < slots:
        node = min(nodes, key=lambda node: (there.count(node), nodes.index(node)))
        ordinals.append(there.count(node))
        there.append(node)
    copies = now.replication and replicas.resized(now.replication, range(len(now.nodes)), there[len(now.nodes) :], disks)
    after = replace(now, version=now.version + 1, nodes=tuple(there), replication=copies)
    if now.ordinals:
        after = replace(after, ordinals=tuple(ordinals))
    return after.changed(replace(now.map(key_groups), version=after.version)) if now.keyed else after


def shrunk(now: Placement, slots: int, key_groups: int) -> Placement:
    """The placement with the first `slots` slots only. Conflict while the others have key groups."""
    return with_only(now, range(slots), key_groups)


def drained(now: Placement, node: str, nodes: Sequence[str], key_groups: int) -> Placement:
    """The placement without slots on that node. Stateless ones go to those of `nodes` with the fewest; Conflict if there is none.

    Keyed ones are removed: Conflict while they have key groups, or there are no other slots.
    """
    left = [place for place, name in enumerate(now.nodes) if name != node]
    if now.keyed:
        if not left:
            raise Conflict(f"all slots are on node {node}: give the deployment slots on other nodes first (udo scale)")
        return with_only(now, left, key_groups)
    others = [name for name in nodes if name != node]
    if not others:
        raise Conflict(f"no other live node listens for other hosts, to take the slots of node {node}")
    there = [now.nodes[place] for place in left]
    after = []
    for name in now.nodes:
        if name == node:
            name = min(others, key=lambda other: (there.count(other), others.index(other)))
            there.append(name)
        after.append(name)
    return replace(now, version=now.version + 1, nodes=tuple(after))


def with_only(now: Placement, places: Sequence[int], key_groups: int) -> Placement:
    """The placement with the slots in these places only. Conflict while the others have key groups."""
    nodes = tuple(now.nodes[place] for place in places)
    if not now.keyed:
        return replace(now, version=now.version + 1, nodes=nodes)
    known, new = now.map(key_groups), {old: at for at, old in enumerate(places)}
    if still := [g for g, place in enumerate(known.groups) if place not in new]:
        raise Conflict(f"the key groups {ranges.shown(still)} are in slots that are to go: move them first (udo rebalance)")
    routes = {new[place]: version for place, version in known.routes.items() if place in new}
    stored = SlotGroups(now.version + 1, routes, tuple(new[place] for place in known.groups))
    after = replace(now, nodes=nodes, ordinals=tuple(map(now.ordinal, places)) if now.ordinals else None)
    for node in nodes:
        if [after.ordinal(place) for place in after.of(node)] != list(range(nodes.count(node))):
            raise Conflict(
                f"a slot that is to go was on node {node} before one that is to stay, which came there from another node: expected more "
                f"slots, or node {node} without its slots first (udo node drain {node}, then --undo)"
            )
    copies = now.replication and replicas.resized(now.replication, places, (), {})
    return replace(after, replication=copies).changed(stored)
