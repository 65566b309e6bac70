"""Steps of an application's deployment with state over nodes: pure functions from one placement to the next.

A scale-out or a migration adds a slot (`begun`); then the node that proposed the step moves key groups from its slot to others (`moves`,
node_manager/reconcile/granted_moves.py); then, after a migration or a scale-in, the slot that has none left goes (`emptied`), and the step
is over once the node has followed (`ended`): a slot that comes back to that node must be a new one, since the former has not seen the
epochs in between. Balancing only moves key groups. The placement alone, whose map is stored from the start, shows the progress of a step;
so a killed process continues from it.
"""

from __future__ import annotations

from dataclasses import replace

from elasticity.scaling.model import Plan
from registry.domain import spreading
from udo_protocol.errors import Conflict
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.state.placement import PendingStep, Placement

# The grant of a step: application, segment of its journal, number of the decision, time.
By = tuple[str, int, int, float]
# Kinds of steps after which the slot that has given key groups away stays.
_STAYS = ("scale_out", "balance")


def begun(now: Placement, node: str, plan: Plan, by: By, key_groups: int) -> Placement:
    """The placement with the step under way, and with the slot that it adds, if any. Conflict if it cannot be done.

    A scale-out gives the new slot half of the key groups of one of the node's slots: the slot that the plan names, else the one with
    most. Balancing moves the plan's key groups from one slot of the node to one other. Otherwise the node's last slot goes, and all of its
    groups.
    """
    own, known = now.of(node), now.map(key_groups)
    source, groups = own[-1], tuple[int, ...]()
    if plan.kind == "balance":
        source, to = _balanced(now, node, plan, key_groups)
        return replace(_next(now, key_groups), step=PendingStep(*by, node, plan.kind, source, to, tuple(sorted(g for g, _ in plan.groups))))
    if plan.kind == "scale_in":
        if len(now.nodes) < 2:
            raise Conflict("it is the only slot, which has all key groups")
        return replace(_next(now, key_groups), step=PendingStep(*by, node, plan.kind, source))
    if plan.kind == "scale_out":
        if len(now.nodes) >= min(MOST_SLOTS, key_groups):
            raise Conflict(f"there are {len(now.nodes)} slots, as many as the deployment may have")
        source = max(own, key=lambda place: (now.name(place) == plan.replica, len(known.of(place))))
        have = known.of(source)
        groups = tuple(have[(len(have) + 1) // 2 :])
        if not groups:
            raise Conflict(f"slot {now.name(source)} has {len(have)} key groups: a further slot would have none")
    after = spreading.grown(now, len(now.nodes) + 1, [plan.target or node], key_groups, {})
    return replace(after, step=PendingStep(*by, node, plan.kind, source, len(now.nodes), groups))


def _balanced(now: Placement, node: str, plan: Plan, key_groups: int) -> tuple[int, int]:
    """The places from which and to which the plan's key groups go. Conflict if they are not in one of its slots, or the other is gone."""
    known, places = now.map(key_groups).groups, {now.name(place): place for place in range(len(now.nodes))}
    sources = {known[g] if 0 <= g < len(known) else -1 for g, _ in plan.groups}
    targets = {places.get(name, -1) for _, name in plan.groups}
    if len(sources) != 1 or len(targets) != 1 or not sources <= set(now.of(node)) or not targets <= set(places.values()) - sources:
        raise Conflict(f"the key groups are no longer in one slot of node {node}, or the slot that they would go to is gone")
    return sources.pop(), targets.pop()


def moves(now: Placement) -> list[tuple[int, list[int]]]:
    """The moves that the node still has to make: places of slots, and the key groups that go to each.

    Without a new slot they go to the node's other slots, else to those of all nodes: first to those with the fewest.
    """
    step, known = now.step, now.stored
    assert step is not None and known is not None
    if step.gone:
        return []
    going = frozenset(step.groups)
    left = [g for g in known.of(step.source) if g in going or step.kind not in _STAYS]
    if step.to is not None:
        return [(step.to, left)] if left else []
    others = [place for place in now.of(step.node) if place != step.source]
    others = others or [place for place in range(len(now.nodes)) if place != step.source]
    count = {place: len(known.of(place)) for place in others}
    given = dict.fromkeys(others, 0)
    for _ in left:
        least = min(others, key=lambda place: count[place] + given[place])
        given[least] += 1
    found = list[tuple[int, list[int]]]()
    for place, some in given.items():
        if some:
            found.append((place, left[:some]))
            left = left[some:]
    return found


def runs_to(now: Placement) -> str:
    """The node that keeps the order of runs once the step is done, since the first slot goes; '' if that stays."""
    step = now.step
    assert step is not None
    return now.nodes[1] if step.source == 0 and step.kind not in _STAYS and not step.gone else ""


def next_part(now: Placement, followed: bool) -> str:
    """The next part: 'emptied' or 'done', or '' while something is left to move. `followed`: the node has done its part of this one."""
    step = now.step
    assert step is not None
    if now.moving is not None or moves(now):
        return ""
    if step.kind in _STAYS or step.gone:
        return "done" if followed or not step.gone else ""
    return "emptied" if followed or not runs_to(now) else ""


def emptied(now: Placement) -> Placement:
    """The placement without the slot that has no key groups any more."""
    step = now.step
    assert step is not None
    return _without(replace(now, step=replace(step, gone=True, to=None)), step.source)


def ended(now: Placement) -> Placement:
    """The placement once the step is done."""
    return _without(replace(now, step=None), None)


def given_up(now: Placement) -> Placement:
    """The placement once the step ends as it is; a slot that was added and has no key groups goes again."""
    step = now.step
    assert step is not None and now.stored is not None
    in_vain = step.kind != "balance" and step.to is not None and not now.stored.of(step.to)
    return _without(replace(now, step=None), step.to if in_vain else None)


def _without(now: Placement, gone: int | None) -> Placement:
    groups = len(now.stored.groups) if now.stored else 0
    if gone is None:
        return _next(now, groups)
    return spreading.with_only(now, [place for place in range(len(now.nodes)) if place != gone], groups)


def _next(now: Placement, key_groups: int) -> Placement:
    """The placement under a new version, so that no node takes the former one for newer."""
    return now.changed(replace(now.map(key_groups), version=now.version + 1))
