"""The steps of the nodes and the registry: replicate, suspect, decide, inform, add a replica; and the loss of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.failover.rules import Rules
from tests.model.failover.state import Configuration, Ending, Group, Member, Node, World
from tests.model.failover.steps import Step, become, members, spend

NOBODY: frozenset[Member] = frozenset()


def replication(w: World, rules: Rules) -> Iterator[Step]:
    """An owner, or a node that believes that it is one, replicates an END."""
    for i, node in enumerate(w.nodes):
        configuration, ending = node.configuration, node.ending
        if not (node.alive and configuration and configuration.owner == Member(i, node.incarnation) and ending and node.group):
            continue
        if ending.missing and node.group.label != ending.label:
            yield Step(f"node {i} drops END {ending.label}: a newer attempt is here", become(w, i, node._replace(ending=None)))
            continue
        for member in sorted(ending.missing):
            given_up = become(w, i, node._replace(ending=_without(ending, member)))
            if rules.replicated:
                yield from _replicate(w, rules, i, node, node.group, configuration, member)
                if not rules.drop_by_version:
                    yield Step(f"node {i} does not wait for {_name(member)} any longer", given_up)
            else:
                yield Step(f"node {i} does not wait for {_name(member)}", given_up)


def _replicate(w: World, rules: Rules, i: int, node: Node, group: Group, of: Configuration, member: Member) -> Iterator[Step]:
    replica, ending = w.nodes[member.node], node.ending
    assert ending is not None
    if not replica.alive or (rules.incarnation and replica.incarnation != member.incarnation):
        return
    if rules.fence and replica.told > of.version:
        stopped = become(w, i, node._replace(configuration=None, ending=None))
        yield Step(f"node {member.node} refuses node {i}: version {of.version} is older than {replica.told}", stopped)
        return
    held = group._replace(base=group.base if rules.undo else group.value, ended=True)
    there = become(w, member.node, replica._replace(told=max(replica.told, of.version), group=held))
    yield Step(f"node {member.node} holds END {ending.label}, the acknowledgement is lost", there)
    acknowledged = become(there, i, node._replace(ending=_without(ending, member)))
    yield Step(f"node {member.node} holds END {ending.label} and acknowledges it", acknowledged)


def decisions(w: World, rules: Rules) -> Iterator[Step]:
    """The registry suspects the owner or a replica of being lost, rightly or not."""
    if w.registry.reported:
        return
    alive, (version, owner, replicas) = members(w), w.registry.configuration
    wrong = owner in alive
    if not wrong or w.budget.suspicions:
        after = w._replace(budget=spend(w, "suspicions", wrong))
        for heir in sorted(replicas & set(alive)):
            following = _decided(after, version + 1, heir, replicas - {heir})
            yield Step(f"{_name(owner)} is suspected, {_name(heir)} is next", following, wrong)
    if not wrong and not replicas & set(alive):
        if rules.report:
            yield Step("nobody holds the group: reported", w._replace(registry=w.registry._replace(joining=None, reported=True)))
        else:
            for member in alive:
                empty = become(w, member.node, w.nodes[member.node]._replace(group=Group(), ending=None))
                yield Step(f"{_name(member)} begins anew", _decided(empty, version + 1, member, NOBODY))
    for member in sorted(replicas):
        wrong = member in alive
        if not wrong or w.budget.suspicions:
            after = w._replace(budget=spend(w, "suspicions", wrong))
            yield Step(f"the replica on {_name(member)} is given up", _decided(after, version + 1, owner, replicas - {member}), wrong)


def news(w: World, rules: Rules) -> Iterator[Step]:
    """The registry sends a node its configuration; a node that is no longer in it hears nothing, maybe for ever."""
    configuration = w.registry.configuration
    for member in members(w):
        node = w.nodes[member.node]
        owner = member == configuration.owner
        if node.configuration == configuration or not (owner or member in configuration.replicas):
            continue
        if node.told > configuration.version or (node.told == configuration.version and not owner):
            continue
        ending = Ending(node.ending.label, configuration.replicas) if owner and node.ending else None
        told = node._replace(told=configuration.version, configuration=configuration, ending=ending)
        yield Step(f"node {member.node} is told of version {configuration.version}", become(w, member.node, told))


def joining(w: World, rules: Rules) -> Iterator[Step]:
    """A new replica is named to the owner, filled by it, and then counted."""
    alive, (version, owner, replicas), pending = members(w), w.registry.configuration, w.registry.joining
    if w.registry.reported or owner not in alive:
        return
    source = w.nodes[owner.node]
    if w.budget.joins and pending is None and len(replicas) < 1 + (owner == w.registry.drained):
        after = w._replace(budget=spend(w, "joins"))
        for member in alive:
            if member in (owner, *replicas, w.registry.drained):
                continue
            if rules.owner_first:
                named = w.registry._replace(configuration=Configuration(version + 1, owner, replicas), joining=member)
                yield Step(f"{_name(member)} is to be a replica", after._replace(registry=named), True)
            elif source.group is not None:
                copied = become(after, member.node, Node(member.incarnation, told=version + 1, group=source.group))
                counted = _decided(copied, version + 1, owner, replicas | {member})
                yield Step(f"{_name(member)} has a copy and counts", counted, True)
    if pending in alive and pending and source.group is not None and source.configuration == w.registry.configuration:
        # One step at the owner: from now on END waits for the new replica, and earlier state is copied.
        counted = _decided(w, version + 1, owner, replicas | {pending})
        configuration = counted.registry.configuration
        ending = Ending(source.ending.label, configuration.replicas) if source.ending else None
        acts = source._replace(told=version + 1, configuration=configuration, ending=ending)
        filled = Node(pending.incarnation, told=version + 1, group=source.group)
        text = f"{_name(pending)} holds what owner {_name(owner)} has ENDed, and counts"
        yield Step(text, become(become(counted, owner.node, acts), pending.node, filled))


def draining(w: World, rules: Rules) -> Iterator[Step]:
    """The owner's node is drained: the group goes to a replica, and the node removes its copy."""
    (version, owner, replicas), alive, drained = w.registry.configuration, set(members(w)), w.registry.drained
    if w.budget.drains:
        after = w._replace(registry=w.registry._replace(drained=owner), budget=spend(w, "drains"))
        yield Step(f"{_name(owner)} is drained", after, True)
    if drained == owner and owner in alive and len(replicas & alive) >= 1 + rules.one_more:
        for heir in sorted(replicas & alive):
            yield Step(f"{_name(heir)} is next after {_name(owner)}", _decided(w, version + 1, heir, replicas - {heir}))
    if drained in alive and drained and drained not in (owner, *replicas) and w.nodes[drained.node].group:
        yield Step(f"{_name(drained)} removes what it had", become(w, drained.node, Node(drained.incarnation, told=version)))


def faults(w: World, rules: Rules) -> Iterator[Step]:
    """A node is lost with its disk; the machine comes back without it."""
    for i, node in enumerate(w.nodes):
        if node.alive and w.budget.losses:
            lost = become(w, i, Node(node.incarnation, alive=False))
            yield Step(f"node {i} and its disk are lost", lost._replace(budget=spend(w, "losses")), True)
        if not node.alive:
            yield Step(f"node {i} comes back empty", become(w, i, Node(node.incarnation + rules.incarnation)))


def _decided(w: World, version: int, owner: Member, replicas: frozenset[Member]) -> World:
    return w._replace(registry=w.registry._replace(configuration=Configuration(version, owner, replicas), joining=None))


def _without(ending: Ending, member: Member) -> Ending:
    return ending._replace(missing=ending.missing - {member})


def _name(member: Member) -> str:
    return f"node {member.node}" + f" (disk {member.incarnation + 1})" * (member.incarnation > 0)
