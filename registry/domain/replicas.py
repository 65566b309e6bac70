"""Replicas of keyed deployments over nodes: the nodes that hold a copy of each slot, and the heirs of a lost node's slots.

`next_placement` is a pure function (failover.py stores what it returns). Each change is a new version, which nodes receive with the
wanted state; for their part, and why it is enough, see docs/design/replicas.md. The rules, and the failure
without each: tests/model/failover.

- A replica is **named** first (`joining`), and **counted** once the slot's owner has said that it ENDs nothing without the replica any
  more, and that the replica holds everything ENDed before.
- A replica whose node is not heard from is given up by a new version, never by an owner that has waited long enough.
- A node whose slots are all held by counted replicas is replaced by these. If one of its slots is not, the loss is noted, and nothing
  begins anew: the node may come back with its disk.
- A node that comes back with another disk counts as another node.
- A drained node keeps its slots until other nodes hold them, one more than the wanted replicas: the wanted number remains when one of
  these has become the owner, whichever node is lost meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from udo_protocol.errors import Conflict
from udo_protocol.state.group_map import FIRST_VERSION
from udo_protocol.state.placement import Placement, Replication


def wanted(placement: Mapping[str, Any] | None) -> int:
    """The number of replicas that each slot of a deployment is to have, by its placement."""
    return int(((placement or {}).get("replication") or {"wanted": 0})["wanted"])


def first(nodes: Sequence[str], count: int, disks: Mapping[str, str]) -> Replication:
    """The replication of a deployment with slots on these nodes, which has had no replica yet."""
    none = Replication(count, {}, (), (), ())
    return resized(none, (), nodes, disks)


def changed(now: Placement, count: int, disks: Mapping[str, str]) -> Placement:
    """The placement with another number of replicas; even with 0 it records which slot has come to which node by which version."""
    copies = replace(now.replication, wanted=count) if now.replication else first(now.nodes, count, disks)
    if not count:
        copies = replace(copies, counted=((),) * len(now.nodes), joining=({},) * len(now.nodes))
    return advanced(now, copies)


def resized(copies: Replication, places: Sequence[int], new: Sequence[str], disks: Mapping[str, str]) -> Replication:
    """The replication of the slots in these places, followed by new slots on the nodes `new`, which have no replica yet."""
    if unknown := [node for node in dict.fromkeys(new) if not disks.get(node)]:
        raise Conflict(f"node {', '.join(unknown)} does not say which disk it has: replicas need node managers of this release")
    return replace(
        copies,
        disks={**{node: disks[node] for node in new}, **copies.disks},
        counted=(*(copies.counted[place] for place in places), *(() for _ in new)),
        joining=(*(copies.joining[place] for place in places), *({} for _ in new)),
        terms=(*(copies.terms[place] for place in places), *(FIRST_VERSION for _ in new)),
    )


@dataclass(frozen=True)
class Nodes:
    """`live`: nodes heard from lately, each with its disk. `may_hold`: live nodes that may become replicas. `drained`: nodes that are to
    have neither slots nor replicas."""

    live: Mapping[str, str]
    may_hold: Sequence[str]
    drained: Collection[str] = ()

    def able(self, copies: Replication) -> list[str]:
        """Nodes that may hold a slot, with the disk that is recorded for them."""
        return [n for n in sorted(self.may_hold) if copies.disks.get(n, self.live[n]) == self.live[n]]

    def have(self, copies: Replication, node: str) -> bool:
        """Whether the node is live, with the disk that is recorded for it."""
        return self.live.get(node) == copies.disks.get(node)


def next_placement(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    """The placement that follows from the known state of the nodes, and its changes in words."""
    if now.replication is None or now.moving is not None:  # it has no replicas, or the next version is that of the move
        return now, []
    after, said = now, list[str]()
    for step in (_given_up, _failed_over, _handed_over, _named, _not_needed):
        after, words = step(after, nodes)
        said += words
    assert after.replication is not None
    used = {*after.nodes, *(node for place in range(len(after.nodes)) for node in after.replication.named(place))}
    disks = {node: disk for node, disk in after.replication.disks.items() if node in used}
    after = replace(after, replication=replace(after.replication, disks=disks))
    return (after if said else now), said


def remains(now: Placement, node: str, nodes: Nodes) -> tuple[str, bool]:
    """Slots and replicas left on a drained node, in words, and whether `next_placement` changes it.

    '' if no slot is left, and no replica that could leave.
    """
    copies, mine = now.replication, now.of(node)
    assert copies is not None
    others = [n for n in nodes.able(copies) if n != node]
    if mine and not nodes.have(copies, node) and node in copies.lost:
        return f"no live node holds its slots {_numbers(mine)}: start node {node} again, with its disk", False
    if mine and not others:
        return (
            f"its slots {_numbers(mine)} stay, since there is no other live node that listens for other hosts and is not drained: start "
            "one, or let one have slots again (udo node drain NODE --undo)"
        ), False
    if mine:
        return f"its slots {_numbers(mine)} go to other nodes as soon as enough of these hold them (udo inspect shows it)", True
    held = [p for p, owner in enumerate(now.nodes) if node in copies.named(p) and set(others) - {owner, *copies.counted[p]}]
    return (f"its replicas of slots {_numbers(held)} are being made on other nodes (udo inspect shows it)" if held else ""), True


def _numbers(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))


def _given_up(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    copies = now.replication
    assert copies is not None
    lost_owners = {node for node in now.nodes if not nodes.have(copies, node)}
    counted, joining, said = list(copies.counted), list(copies.joining), []
    for place, owner in enumerate(now.nodes):
        gone = {node for node in copies.named(place) if not nodes.have(copies, node)}
        if owner in lost_owners:  # a replica that is away may be the only one that holds the slot, and come back
            gone &= set(joining[place])
        for node in sorted(gone):
            said.append(f"the replica of slot {place} on node {node} is given up")
        counted[place] = tuple(node for node in counted[place] if node not in gone)
        joining[place] = {node: version for node, version in joining[place].items() if node not in gone}
    after = replace(copies, counted=tuple(counted), joining=tuple(joining))
    return (advanced(now, after), said) if said else (now, said)


def _failed_over(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    said: list[str] = []
    for node in dict.fromkeys(now.nodes):
        copies = now.replication
        assert copies is not None
        if nodes.have(copies, node):
            if node in copies.lost:
                said.append(f"node {node} is back, with its disk")
                now = advanced(now, replace(copies, lost=tuple(n for n in copies.lost if n != node)))
            continue
        holders = {place: [n for n in copies.counted[place] if nodes.have(copies, n)] for place in now.of(node)}
        if not all(holders.values()):
            if node not in copies.lost:
                nobody = ", ".join(str(place) for place, there in holders.items() if not there)
                said.append(f"node {node} is lost, and no live node holds its slots {nobody}: they wait for it")
                now = advanced(now, replace(copies, lost=(*copies.lost, node)))
            continue
        holders = {place: [n for n in there if n not in nodes.drained] or there for place, there in holders.items()}
        now, words = _replaced(now, copies, node, holders, "lost")
        said += words
    return now, said


def _handed_over(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    said: list[str] = []
    for node in dict.fromkeys(now.nodes):
        copies = now.replication
        assert copies is not None
        if node not in nodes.drained:
            continue
        enough = max(1, min(copies.wanted + 1, len(nodes.able(copies))))
        holders = {place: _staying(copies, place, nodes) for place in now.of(node)}
        if all(len(there) >= enough for there in holders.values()):
            now, words = _replaced(now, copies, node, holders, "drained")
            said += words
    return now, said


def _staying(copies: Replication, place: int, nodes: Nodes) -> list[str]:
    """The counted replicas of a slot whose nodes are neither drained nor away."""
    return [node for node in copies.counted[place] if node not in nodes.drained and nodes.have(copies, node)]


def _replaced(
    now: Placement, copies: Replication, former: str, holders: Mapping[int, Sequence[str]], why: str
) -> tuple[Placement, list[str]]:
    nodes, ordinals = list(now.nodes), [now.ordinal(place) for place in range(len(now.nodes))]
    counted, joining, terms = list(copies.counted), list(copies.joining), list(copies.terms)
    said, version = [], now.version + 1
    for place, there in sorted(holders.items()):
        heir = min(there, key=lambda node: (nodes.count(node), there.index(node)))
        ordinals[place] = 1 + max((ordinals[other] for other, node in enumerate(nodes) if node == heir), default=-1)
        nodes[place], terms[place] = heir, version
        counted[place] = tuple(node for node in counted[place] if node != heir)
        joining[place] = {}
        said.append(f"node {former} is {why}: slot {place} goes to node {heir}, which holds it")
    after = replace(copies, counted=tuple(counted), joining=tuple(joining), terms=tuple(terms))
    after = replace(after, lost=tuple(n for n in copies.lost if n != former))
    return replace(advanced(now, after), nodes=tuple(nodes), ordinals=tuple(ordinals)), said


def _load(now: Placement, copies: Replication) -> Counter[str]:
    return Counter(node for place in range(len(now.nodes)) for node in copies.named(place))


def _wanted(now: Placement, copies: Replication, place: int, nodes: Nodes) -> int:
    """The number of replicas that the slot is to have now: one more before it leaves a drained node."""
    return copies.wanted + (now.nodes[place] in nodes.drained)


def _named(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    copies = now.replication
    assert copies is not None
    joining, disks, said = list(copies.joining), dict(copies.disks), []
    load, able = _load(now, copies), nodes.able(copies)
    for place, owner in enumerate(now.nodes):
        if not nodes.have(copies, owner):
            continue
        there = [node for node in copies.named(place) if node not in nodes.drained]
        for _ in range(_wanted(now, copies, place, nodes) - len(there)):
            free = [n for n in able if n != owner and n not in copies.counted[place] and n not in joining[place]]
            if not free:
                break
            behind = [n for n in free if n > owner] or free
            node = min(free, key=lambda n: (load[n], n != behind[0], n))
            load[node] += 1
            joining[place] = {**joining[place], node: now.version + 1}
            disks[node] = nodes.live[node]
            said.append(f"node {node} is to be a replica of slot {place}")
    return (advanced(now, replace(copies, joining=tuple(joining), disks=disks)), said) if said else (now, said)


def _not_needed(now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    """Drop replicas beyond the wanted number, and those on drained nodes once there are others for them."""
    copies = now.replication
    assert copies is not None
    counted, joining, said = list(copies.counted), list(copies.joining), []
    load = _load(now, copies)
    for place, owner in enumerate(now.nodes):
        if not nodes.have(copies, owner):
            continue
        wanted, staying = _wanted(now, copies, place, nodes), _staying(copies, place, nodes)
        fewer = sorted(staying, key=lambda node: (load[node], node))[:wanted]
        kept = set(copies.counted[place]) if len(fewer) < wanted else set(fewer)
        kept |= set([node for node in joining[place] if node not in nodes.drained][: wanted - len(fewer)])
        for node in sorted(copies.named(place) - kept):
            load[node] -= 1
            said.append(f"the replica of slot {place} on node {node} is not needed")
        counted[place] = tuple(node for node in counted[place] if node in kept)
        joining[place] = {node: version for node, version in joining[place].items() if node in kept}
    return (advanced(now, replace(copies, counted=tuple(counted), joining=tuple(joining))), said) if said else (now, said)


def advanced(now: Placement, copies: Replication) -> Placement:
    """The next version of the placement, with these replicas."""
    version = now.version + 1
    stored = replace(now.stored, version=version) if now.stored else None
    return replace(now, version=version, stored=stored, replication=copies)
