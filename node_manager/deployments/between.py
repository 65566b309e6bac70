"""Moves of key groups between the nodes of a deployment over nodes, executed by the node that has the groups.

The move's intent is on that node's state server. The registry gives the move its version of the map and puts that version in force; the
other node brings the groups that were handed over into its slot and adopts them (taking.py). For each step, a server, the registry or the
other node can tell whether it was done: after an interruption all are asked again, and the move goes on from the first step that may be
missing. The rules, and what goes wrong without each: tests/model/between.

Until the new map is in force producers use the old one; behind its cut the source refuses their frames, and tells them the new map.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition
from typing import Any, Protocol

import structlog

from node_manager.deployments.across import Across
from node_manager.deployments.deployments import NodeDeployment
from node_manager.deployments.move_steps import CPAL, Progress, cut_and_wait
from node_manager.deployments.reading_ahead import Interrupted, checkpoint_before_cut
from node_manager.slots.slot import Slot
from udo_protocol.errors import Conflict, NotFound
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.route import Route
from udo_protocol.state import carrying, moving, rewinding
from udo_protocol.state.carrying import Carried, SentAhead
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.moving import Intent
from udo_protocol.state.placement import PendingMove, Placement

# Looks before the source's checkpoint. The first one takes long if the state is large; the second brings the changes since.
_LOOKS = 2
_log = structlog.get_logger()


class PlacementMoves(Protocol):
    """The part of udo_protocol.registry.api.Registry that is used here."""

    def deployment(self, name: str) -> Mapping[str, Any]:
        """The deployment, with its placement."""

    def move_groups(
        self, deployment: str, step: str, *, node: str, version: int, groups: Sequence[int] = (), to: int = 0
    ) -> Mapping[str, Any]:
        """Do a step of a move; return the placement after it."""


@dataclass(frozen=True)
class Ready:
    """A slot that can take groups. place: among those of its node; reads_ahead: whether that node knows `Taker.ahead`."""

    place: int
    reads_ahead: bool


@dataclass(frozen=True)
class Coming:
    """Key groups that are going to move by that version of the map, and the name of the copy that is made of them ahead."""

    version: int
    groups: Sequence[int]
    copy: str


class Taker(Protocol):
    """The node that the groups move to: taking.Takes of this node, or another node over its port."""

    def ready(self, name: str, slot: int) -> Ready:
        """Conflict if the slot cannot take groups now."""

    def ahead(self, name: str, slot: int, coming: Coming, carried: Iterator[Carried]) -> None:
        """Write what groups have that are going to come to the slot; return when its owner has read it."""

    def take(self, name: str, slot: int, version: int, carried: Iterator[Carried], copy: str = "") -> None:
        """Bring the groups that were handed over into the slot, once. `copy`: what was brought ahead, and is not in `carried`."""

    def adopt(self, name: str, slot: int, version: int, placement: Mapping[str, Any]) -> None:
        """Let the slot adopt them; return when they are durably its own."""


class MoveBetween:
    """The moves of one deployment. `taker`: returns the other node by its name; `gone`: whether the manager stops, or the deployment is
    gone; `waited`: gets the seconds for which key groups could not be used."""

    def __init__(
        self,
        deployment: NodeDeployment,
        across: Across,
        registry: PlacementMoves,
        taker: Callable[[str], Taker],
        changed: Condition,
        gone: Callable[[], bool],
        waited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._deployment, self._across, self._registry, self._taker = deployment, across, registry, taker
        self._changed, self._gone, self._waited = changed, gone, waited
        self._groups = deployment.config.instance.key_groups

    def run(self, state: Connection, queue: Connection, intent: Intent, progress: Progress) -> None:
        """Do all that is left of a move; its note stays."""
        for _ in self.steps(state, queue, intent, progress):
            if self._gone():
                raise Interrupted

    def steps(self, state: Connection, queue: Connection, intent: Intent, progress: Progress) -> Iterator[str]:
        """Do the same; yield each step when it is done."""
        name, node, taker = self._deployment.name, self._across.node, self._taker(intent.node)
        for slot in self._deployment.own:
            rewinding.forget(state, queue, slot.keys)  # a rollback would undo the move
        try:
            ready = taker.ready(name, intent.to)
        except NotFound:
            pending = self._look().moving
            if intent.cut or pending is not None and pending.node == node:
                raise
            return  # nothing has begun, and the slot is gone
        yield "ready"
        sent: SentAhead | None = None
        while True:
            placed = self._look()
            pending = placed.moving
            if intent.cut and (pending is None or pending.version != intent.cut):
                intent = self._noted(state, intent, 0)
                yield "noted done"
                continue
            to, now = _place(placed, intent.node, ready.place), placed.map(self._groups)
            left = [g for g in intent.groups if placed.nodes[now.groups[g]] == node and now.groups[g] != to]
            with self._changed:
                progress.moved, progress.trouble = progress.total - len(left), ""
                self._changed.notify_all()
            if not intent.cut:
                if not left and (pending is None or pending.node != node):
                    return
                if pending is None or pending.node != node:
                    groups = [g for g in left if now.groups[g] == now.groups[left[0]]]
                    begun = self._registry.move_groups(name, "begin", node=node, version=placed.version, groups=groups, to=to)
                    pending = self._learn(begun).moving
                    yield "begun"
                assert pending is not None
                if pending.to != to or not set(pending.groups) <= set(intent.groups):
                    raise Conflict(f"another move of deployment {name!r} by node {node} has begun before: it has to end first")
                if intent.strategy == CPAL and ready.reads_ahead:
                    sent = self._sent_ahead(state, queue, intent, self._source(placed, pending.source), pending)
                    yield "read ahead"
                intent = self._noted(state, intent, pending.version)
                yield "noted"
            assert pending is not None
            source, version, cut_s, ms = self._source(placed, pending.source), pending.version, time.monotonic(), dict[str, float]()
            if placed.version < version:
                new = now.moved(pending.groups, pending.source, pending.to)
                handed = partial(moving.is_handed_over, state, source.keys, version)
                cut_and_wait(queue, source.keys, table(placed, new, pending.source), pending.groups, handed, self._gone)
                ms["handed_over_ms"] = _since(cut_s)
                yield "handed over"
            if moving.is_handed_over(state, source.keys, version):
                carried = carrying.handed_over(state, source.keys, version, sent)
                taker.take(name, intent.to, version, carried, sent.copy if sent else "")
                sent, ms["taken_ms"] = None, _since(cut_s)
                yield "taken"
            elif placed.version >= version:  # forgotten, or lost with this node's disk; the other node may have lost it as well
                taker.take(name, intent.to, version, iter(()))
            placed = self._learn(self._registry.move_groups(name, "in force", node=node, version=version))
            ms["in_force_ms"] = _since(cut_s)
            yield "in force"
            taker.adopt(name, intent.to, version, placed.document())
            self._waited(time.monotonic() - cut_s)
            ms["adopted_ms"] = _since(cut_s)
            _log.info("key groups moved to another node", deployment=name, node=intent.node, slot=intent.to, version=version, **ms)
            yield "adopted"
            carrying.forget(state, source.keys, version)
            yield "forgotten"
            self._learn(self._registry.move_groups(name, "done", node=node, version=version))
            yield "done"

    def _sent_ahead(self, state: Connection, queue: Connection, intent: Intent, source: Slot, pending: PendingMove) -> SentAhead:
        """Let the other slot's owner read the groups while they are served here. An error leaves them here; the move begins again."""
        sent, began = SentAhead(secrets.token_hex(8)), time.monotonic()
        coming, taker = Coming(pending.version, pending.groups, sent.copy), self._taker(intent.node)

        def look() -> None:
            carried = carrying.ahead(state, source.keys, pending.groups, sent)
            taker.ahead(self._deployment.name, intent.to, coming, self._unless_gone(carried))

        for _ in range(_LOOKS):
            look()
        checkpoint_before_cut(queue, source.keys, pending.version, self._gone)
        look()
        s = round(time.monotonic() - began, 1)
        _log.info("key groups read ahead on another node", deployment=self._deployment.name, node=intent.node, version=pending.version, s=s)
        return sent

    def _unless_gone(self, carried: Iterator[Carried]) -> Iterator[Carried]:
        for part in carried:
            if self._gone():
                raise Interrupted
            yield part

    def _look(self) -> Placement:
        found = self._registry.deployment(self._deployment.name)["placement"]
        if not found:
            raise Conflict(f"deployment {self._deployment.name!r} is not spread over nodes any more")
        return self._learn(found)

    def _learn(self, placement: Mapping[str, Any]) -> Placement:
        """Store what the registry says before anything relies on it: a new queue server gets the stored map."""
        self._across.learn_one(self._deployment.name, placement)
        return Placement.parse(placement, keyed=True)

    def _noted(self, state: Connection, intent: Intent, cut: int) -> Intent:
        intent = replace(intent, cut=cut)
        moving.note(state, self._deployment.slot.keys, intent)
        return intent

    def _source(self, placed: Placement, place: int) -> Slot:
        return self._deployment.own[placed.ordinal(place)]


def _since(cut_s: float) -> float:
    """Milliseconds since that time, for the log."""
    return round((time.monotonic() - cut_s) * 1000, 1)


def _place(placed: Placement, node: str, ordinal: int) -> int:
    """The place of a node's slot. NotFound if the registry gives the node no such slot."""
    places = placed.of(node)
    if ordinal >= len(places):
        raise NotFound(f"node {node} has {len(places)} slots of the deployment by the registry: expected more than {ordinal}")
    return places[ordinal]


def table(placed: Placement, new: SlotGroups, place: int) -> Route:
    """The route that the slot in this place gives to producers that use an older map than `new`."""
    return new.route(place, placed.name)


def sources(placed: Placement, groups: Sequence[int], to: int, key_groups: int) -> dict[str, list[int]]:
    """Node -> those of these groups that it has, without the groups that are already in the slot in place `to`."""
    now, found = placed.map(key_groups), dict[str, list[int]]()
    for g in groups:
        if now.groups[g] != to:
            found.setdefault(placed.nodes[now.groups[g]], []).append(g)
    return found
