"""The placement of a deployment over nodes: the node of each slot, and the slot of each key group. Versioned, kept by the registry.

A slot is identified by its place among all slots; for producers by its node and its ordinal among the slots of that node, which stays while
other slots come and go. The key groups are spread evenly until a move changes that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from udo_protocol.errors import Conflict
from udo_protocol.state.group_map import SlotGroups


@dataclass(frozen=True)
class PendingMove:
    """A move that results in version `version` of the map: `node` hands these groups over from the slot in place `source` to place `to`."""

    version: int
    node: str
    source: int
    to: int
    groups: tuple[int, ...]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> PendingMove:
        """Inverse of `document`."""
        numbers = (int(found["source"]), int(found["to"]), tuple(map(int, found["groups"])))
        return cls(int(found["version"]), str(found["node"]), *numbers)

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        return {"version": self.version, "node": self.node, "source": self.source, "to": self.to, "groups": list(self.groups)}


@dataclass(frozen=True)
class PendingStep:
    """A step that the manager of `application` granted by decision `number` of a segment of its journal, at `at_s`: the slot in place
    `source`, on `node`, gives key groups away and, after a migration or a scale-in, is then removed. `to`: the place of the slot that was
    added for them, or that gets them by balancing; None: the others get them. `groups`: those that a scale-out or balancing moves; other
    steps move all. `gone`: the slot is gone; its node follows."""

    application: str
    segment: int
    number: int
    at_s: float
    node: str
    kind: str
    source: int
    to: int | None = None
    groups: tuple[int, ...] = ()
    gone: bool = False

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> PendingStep:
        """Inverse of `document`."""
        return cls(**{**found, "groups": tuple(found["groups"])})

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        return {**asdict(self), "groups": list(self.groups)}


@dataclass(frozen=True)
class Replication:
    """The replicas of a deployment's slots, each on a node other than the slot's, as the registry decides (registry/domain/replicas.py).

    `wanted`: how many replicas each slot is to have. `disks`: for each named node the disk that is meant (its incarnation). By place:
    `counted`, nodes that hold all that was ENDed; `joining`, nodes that do not yet, with the version that named them; `terms`, the
    version by which the slot came to its node. `lost`: lost nodes whose slots no live node holds.
    """

    wanted: int
    disks: Mapping[str, str]
    counted: tuple[tuple[str, ...], ...]
    joining: tuple[Mapping[str, int], ...]
    terms: tuple[int, ...]
    lost: tuple[str, ...] = ()

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Replication:
        """Inverse of `document`."""
        return cls(
            int(found["wanted"]),
            dict(found["disks"]),
            tuple(map(tuple, found["counted"])),
            tuple({str(node): int(version) for node, version in place.items()} for place in found["joining"]),
            tuple(map(int, found["terms"])),
            tuple(found.get("lost", ())),
        )

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        lists = {"counted": [list(c) for c in self.counted], "joining": [dict(j) for j in self.joining], "terms": list(self.terms)}
        return {"wanted": self.wanted, "disks": dict(self.disks), **lists, "lost": list(self.lost)}

    def named(self, place: int) -> set[str]:
        """The nodes that are, or are becoming, replicas of the slot in that place."""
        return {*self.counted[place], *self.joining[place]}


@dataclass(frozen=True)
class Placement:
    """`nodes`: the node of each slot. `made`: differs between deployments of the same name. `stored`: the map, in which slots are named by
    their places; None: even. `moving`: a move under way. `ordinals`: the place of each slot among the slots of its node; None: in the
    order of the places. `step`: an application's step under way."""

    version: int
    nodes: tuple[str, ...]
    keyed: bool
    made: int = 0
    stored: SlotGroups | None = None
    moving: PendingMove | None = None
    ordinals: tuple[int, ...] | None = None
    replication: Replication | None = None
    step: PendingStep | None = None

    @classmethod
    def parse(cls, found: Mapping[str, Any], *, keyed: bool) -> Placement:
        """The placement in the registry's document."""
        version, groups, pending = int(found["version"]), found.get("groups"), found.get("moving")
        stored = SlotGroups(version, {int(k): int(v) for k, v in found["routes"]}, tuple(map(int, groups))) if groups else None
        moving = PendingMove.parse(pending) if pending else None
        ordinals, copies, step = found.get("ordinals"), found.get("replication"), found.get("step")
        return cls(
            *(version, tuple(found["nodes"]), keyed, int(found.get("made", 0)), stored, moving),
            tuple(map(int, ordinals)) if ordinals else None,
            Replication.parse(copies) if copies else None,
            PendingStep.parse(step) if step else None,
        )

    def document(self) -> dict[str, Any]:
        """The document that `parse` takes, for JSON."""
        found: dict[str, Any] = {"version": self.version, "nodes": list(self.nodes), "made": self.made}
        if self.stored:
            found |= {"groups": list(self.stored.groups), "routes": [list(r) for r in self.stored.routes.items()]}
        if self.ordinals:
            found["ordinals"] = list(self.ordinals)
        if self.replication:
            found["replication"] = self.replication.document()
        if self.step:
            found["step"] = self.step.document()
        return found | ({"moving": self.moving.document()} if self.moving else {})

    def newer(self, other: Placement) -> bool:
        """Whether this placement replaces `other`, of a deployment of the same name."""
        return self.made != other.made or self.version >= other.version

    def map(self, key_groups: int) -> SlotGroups:
        """The group map, with slots by their places."""
        return self.stored or SlotGroups.even(range(len(self.nodes)), key_groups)

    def changed(self, new: SlotGroups) -> Placement:
        """The placement with this map, which has the next version."""
        return replace(self, version=new.version, stored=new)

    def of(self, node: str) -> list[int]:
        """The places of a node's slots, in the order in which the node has them."""
        return sorted((place for place, name in enumerate(self.nodes) if name == node), key=self.ordinal)

    def ordinal(self, place: int) -> int:
        """The slot's place among those of its node."""
        return self.ordinals[place] if self.ordinals else self.nodes[:place].count(self.nodes[place])

    def name(self, place: int) -> str:
        """The slot's name for producers."""
        return f"{self.nodes[place]}/{self.ordinal(place)}"

    def require_no_replicas(self, name: str, what: str) -> None:
        """Raise Conflict, saying `what` is not possible, if the deployment has replicas."""
        copies = self.replication
        if copies is not None and (copies.wanted or any(copies.named(place) for place in range(len(self.nodes)))):
            raise Conflict(
                f"deployment {name!r} has replicas, so {what}. It can be done without them: udo scale {name} --replicas 0, then this, then "
                f"udo scale {name} --replicas {copies.wanted or 1}; in between a node that is lost takes its slots' state with it"
            )

    def on(self, node: str, slots: Sequence[int], key_groups: int) -> SlotGroups:
        """The map of one node, whose slots have these numbers; -1 for slots on other nodes."""
        known = self.map(key_groups)
        number = dict(zip(self.of(node), slots, strict=False))
        routes = {number[place]: version for place, version in known.routes.items() if place in number}
        return SlotGroups(self.version, routes, tuple(number.get(place, -1) for place in known.groups))
