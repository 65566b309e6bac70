"""The deployments of this node and their slots; the wanted deployments are also on disk, and outlive every manager."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from node_manager.config import DeploymentConfig, Release
from node_manager.deployments.preparation import Preparation
from node_manager.files import read_kept
from node_manager.images.images import Images, OperatorImage
from node_manager.slots.loading import NodeParts, Wanted
from node_manager.slots.slot import Slot
from node_manager.trials.canaries import Canary
from node_manager.trials.keyed_canaries import KeyedCanary
from udo_protocol.errors import Conflict, NotFound, Unavailable
from udo_protocol.files import replace_file
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.group_map import FIRST_VERSION

# Slots that are added to a deployment are numbered from here on: pinned versions, canaries, and its own beside the first.
PINNED_FROM = 1000
_DAMAGED = (
    "Restore it from a backup of the node's home; or remove it: the registry's deployments come again, others have to be deployed again. "
    "Their state stays"
)


@dataclass
class NodeDeployment:
    """An operator made callable on this node."""

    name: str
    operator: str
    version: str
    digest: str
    config: DeploymentConfig
    source: str  # "registry" or "local": the one that may remove it
    slot: Slot
    pinned: dict[str, Slot] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of the pinned slots, by digest
    next_number: int = PINNED_FROM  # never used twice: the keys of a retired slot may still be on their way out
    epochs: dict[str, str] = field(default_factory=dict)
    canary: Canary | KeyedCanary | None = None
    more: dict[int, Slot] = field(default_factory=dict)  # its own slots beside the first: new lanes are spread over all of them
    beside: dict[int, Slot] = field(default_factory=dict)  # a canary's slot, and slots that only answer the lanes they have
    in_all: int = 1  # number of its slots on all nodes, if they are spread over nodes
    asked: int = 0  # number of slots last asked for; mode auto may have changed it since
    preparation: Preparation | None = None  # of a scale-out
    prepared: dict[int, Slot] = field(default_factory=dict)  # slots that stand ready for it: no part of the group map, without lanes
    # Its own slots that it got by a later version of the placement than the first: number -> version (Replication.terms).
    terms: dict[int, int] = field(default_factory=dict)
    made: int | None = None  # its number at the registry, higher than those of former deployments of this name; None: not known
    adopted: set[int] = field(default_factory=set)  # numbers of slots in `beside` left by a former manager: their canary may go on

    def record(self) -> dict[str, Any]:
        """The record on disk."""
        names = ("name", "operator", "version", "digest", "source", "numbers", "next_number", "in_all", "asked", "made")
        numbers: dict[str, Any] = {"more": list(self.more), "beside": list(self.beside), "config": self.config.document}
        numbers["preparation"] = self.preparation and self.preparation.record()
        if terms := [(number, term) for number, term in self.terms.items() if term != FIRST_VERSION]:  # unknown to former releases
            numbers |= {"terms": terms, "first": self.slot.number}
        return {**{k: getattr(self, k) for k in names}, **numbers}

    @property
    def release(self) -> Release:
        """What it is to serve."""
        return Release(self.version, self.digest, self.config)

    def term(self, number: int) -> int:
        """The version of the placement by which it has the slot with that number."""
        return self.terms.get(number, FIRST_VERSION)

    @property
    def may_be_keyed(self) -> bool:
        """Whether it keeps state by key, or may: which version it serves is not known yet."""
        return self.slot.wanted is None or bool(self.slot.wanted.image.manifest.key)

    def take_number(self) -> int:
        """Take the number of a new slot."""
        self.next_number += 1
        return self.next_number - 1

    @property
    def own(self) -> list[Slot]:
        """The slots that serve the deployment's version, slot 0 first."""
        return [self.slot, *self.more.values()]

    @property
    def slots_in_all(self) -> int:
        """The number of slots that serve the deployment's version, on this node or on all nodes that it is spread over."""
        return max(len(self.own), self.in_all)

    @property
    def canary_slot(self) -> Slot | None:
        """The slot of its canary; None without one. A keyed canary has none: it is compared on the owners' frames."""
        return self.canary.slot if isinstance(self.canary, Canary) else None

    @property
    def slots(self) -> list[Slot]:
        """All slots of the deployment, its own first."""
        return [*self.own, *self.pinned.values(), *self.beside.values(), *self.prepared.values()]

    @property
    def digests(self) -> set[str]:
        """Digests of the images that the deployment needs."""
        beside = {s.wanted.image.digest for s in (*self.beside.values(), *self.prepared.values()) if s.wanted}
        return {self.digest, *self.numbers, *beside} | ({self.canary.digest} if self.canary else set())


class Deployments:
    """The deployments of one node. Thread-safe: to change one, hold `lock`, and call `save` before releasing it."""

    def __init__(self, node: NodeParts, images: Images) -> None:
        self._node, self._settings, self._images = node, node.settings, images
        self._by_name: dict[str, NodeDeployment] = {}
        # Slots of removed deployments that may have left something behind, also on disk; None: a former manager's slot.
        self._removing: dict[SlotKeys, Slot | None] = {}
        self._saved = b""  # what this manager wrote last
        self.closed = False
        self.lock = RLock()

    def kept(self) -> list[dict[str, Any]]:
        """The records of the deployments on disk. Unavailable if the file is damaged."""
        return list(read_kept(self._settings.wanted, _DAMAGED).get("deployments", []))

    def load(self) -> Iterator[tuple[NodeDeployment, list[int], list[int]]]:
        """Take over the deployments on disk, one by one, each with the numbers of its `more` and `beside` slots."""
        removing = read_kept(self._settings.wanted, _DAMAGED).get("removing", ())
        self._removing = {SlotKeys(name, number): None for name, number in removing}
        for record in self.kept():
            more, beside, name = record.pop("more", []), record.pop("beside", []), record["name"]
            if (noted := record.pop("preparation", None)) is not None:
                record["preparation"] = Preparation(**noted)
            terms = {int(number): int(version) for number, version in record.pop("terms", ())}
            record["config"] = DeploymentConfig(record["config"])
            first = Slot(self._node, name, int(record.pop("first", 0)))
            deployment = self._by_name[name] = NodeDeployment(**record, slot=first, terms=terms)
            yield deployment, more, beside

    def new(self, name: str, image: OperatorImage, config: DeploymentConfig, source: str, first: int = 0) -> NodeDeployment:
        """Add a deployment that this image is to serve; `first`: the number of its first slot.

        Unavailable while the node stops: a slot made now would outlive it; or while something of a former one of its name may be left.
        """
        with self.lock:
            self.require_open()
            if any(keys.deployment == name for keys in self._removing):
                raise Unavailable(f"deployment {name!r} is still being removed from node {self._settings.node}: try again when it is gone")
            manifest = image.manifest
            slot = Slot(self._node, name, first)
            deployment = self._by_name[name] = NodeDeployment(name, manifest.name, manifest.version, image.digest, config, source, slot)
            return deployment

    def require_open(self) -> None:
        """Unavailable while the node stops: a slot made now would outlive it, and what is changed now is not saved."""
        if self.closed:
            raise Unavailable(f"node {self._settings.node} is stopping")

    def save(self) -> None:
        """Write the wanted deployments to disk if they have changed. Once the node stops, the file stays as it is: the table is empty
        then."""
        if self.closed:
            return
        noted: dict[str, Any] = {"removing": [(k.deployment, k.number) for k in self._removing]} if self._removing else {}
        content = json.dumps({"deployments": [d.record() for d in self._by_name.values()], **noted}).encode()
        if content != self._saved:
            replace_file(self._settings.wanted, content, durable=True)
            self._saved = content

    def remove(self, name: str) -> None:
        """Remove the deployment from the table and from disk, where its slots are noted until they are `removed`.

        Unavailable while the node stops.
        """
        with self.lock:
            self.require_open()
            if (deployment := self._by_name.pop(name, None)) is not None:
                self._removing |= {slot.keys: slot for slot in deployment.slots}
            self.save()

    def left(self, name: str = "") -> list[SlotKeys]:
        """The slots of removed deployments, or of one, that have ended, and of which something may be left."""
        with self.lock:
            return [keys for keys, slot in self._removing.items() if name in ("", keys.deployment) and (slot is None or slot.stopped)]

    def removed(self, slots: Iterable[SlotKeys]) -> None:
        """Note that nothing is left of these slots."""
        with self.lock:
            for keys in slots:
                self._removing.pop(keys, None)
            self.save()

    def close(self) -> list[Slot]:
        """Empty the table and accept no more deployments; they stay on disk. Return their slots."""
        with self.lock:
            slots = self.slots()
            self._by_name.clear()
            self.closed = True
        return slots

    def slots(self) -> list[Slot]:
        """All slots of this node."""
        with self.lock:
            return [slot for deployment in self._by_name.values() for slot in deployment.slots]

    def all(self) -> list[NodeDeployment]:
        """All deployments of this node."""
        with self.lock:
            return list(self._by_name.values())

    def get(self, name: str) -> NodeDeployment | None:
        """The deployment, if there is one of that name."""
        with self.lock:
            return self._by_name.get(name)

    def find(self, name: str) -> NodeDeployment:
        """The deployment; NotFound lists similar names."""
        with self.lock:
            if name in self._by_name:
                return self._by_name[name]
            near = difflib.get_close_matches(name, self._by_name) or sorted(self._by_name)[:5]
        there = f"; did you mean: {', '.join(near)}?" if near else "; this node has none yet"
        raise NotFound(f"no deployment {name!r} on node {self._settings.node}{there} Deploy it with: udo deploy {name}")

    def condition(self, name: str) -> tuple[str, str] | None:
        """The condition (Slot.condition) of the deployment's first own slot that does not answer, else of its first; None if it is gone."""
        deployment = self.get(name)
        if deployment is None:
            return None
        found = [(slot.number, slot.condition()) for slot in deployment.own]
        worst = next(((number, c) for number, c in found if c is None or c[0] != "answering"), found[0])
        if worst[1] is None or len(found) == 1:
            return worst[1]
        state, why = worst[1]
        return state, f"slot {worst[0]} of {len(found)}: {why}" if why else ""

    def image(self, deployment: NodeDeployment, version: str, digest: str) -> OperatorImage:
        """The image of a version of its operator, pulled if need be."""
        return self._images.get(deployment.operator, version, digest)

    def wanted(self, deployment: NodeDeployment, release: Release) -> Wanted:
        """A release of its operator. Conflict if its configuration has another number of key groups than the deployment's."""
        image, parsed = self.image(deployment, release.version, release.digest), release.config.instance
        if image.manifest.key and parsed.key_groups != (there := deployment.config.instance.key_groups):
            raise Conflict(
                f"deployment {deployment.name!r} has {there} key groups on node {self._settings.node}, chosen at its first start; expected "
                f"the same, got {parsed.key_groups}, where its sessions' keys would be in other groups. Undeploy it first"
            )
        return Wanted(image, parsed)

    def serving(self, deployment: NodeDeployment) -> Wanted:
        """The version and configuration that the deployment is to serve."""
        return self.wanted(deployment, deployment.release)

    def want(self, deployment: NodeDeployment, release: Release) -> None:
        """Set what the deployment serves from now on."""
        with self.lock:
            deployment.version, deployment.digest, deployment.config = release.version, release.digest, release.config
            self.save()

    def require_local(self, deployment: NodeDeployment, command: str) -> None:
        """Conflict if the registry decides about it, since it would undo the change."""
        if deployment.source == "registry":
            raise Conflict(f"deployment {deployment.name!r} is managed by the registry {self._settings.registry}; use: {command}")
