"""Takes key groups that come to a slot of this node from another node, as the node that moves them asks (between.py)."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import structlog

from node_manager.deployments.across import Across
from node_manager.deployments.between import Coming, Ready, table
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.move_steps import cut_and_wait
from node_manager.deployments.reading_ahead import AHEAD_S, OwnerReads
from node_manager.slots.loading import NodeParts
from node_manager.slots.slot import Slot
from udo_protocol.errors import Conflict, NotFound, ProtocolError, Unavailable, UsageError
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue import access, route
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.slot import READS_COPIES
from udo_protocol.state import carrying, moving, rewinding
from udo_protocol.state.carrying import Carried
from udo_protocol.state.placement import Placement

# An owner adopts within milliseconds, a new one once it has loaded; after this time the node that moves the groups asks again.
ADOPT_S = 30.0
_log = structlog.get_logger()


class Takes:
    """The part of one node in moves to it. Methods may be called from any thread; `require_able` refuses slots that cannot take groups."""

    def __init__(
        self,
        node: NodeParts,
        deployments: Deployments,
        across: Across,
        require_able: Callable[[NodeDeployment], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._node, self._deployments, self._across = node, deployments, across
        self._require_able, self._stopping = require_able, stopping
        self._lock = Lock()
        self._routes = Lock()  # held in steps that depend on the map by which slots take frames

    def ready(self, name: str, slot: int) -> Ready:
        """Conflict if the slot cannot take groups now."""
        deployment, own = self._find(name, slot)
        if any(s.updating for s in deployment.own):
            raise Conflict(f"the version of deployment {name!r} is being changed: move key groups when that is done")
        self._require_able(deployment)
        with self._servers() as (state, queue):
            for mine in deployment.own:
                rewinding.forget(state, queue, mine.keys)  # a rollback would undo the move
        return Ready(deployment.own.index(own), reads_ahead=True)

    def ahead(self, name: str, slot: int, coming: Coming, carried: Iterator[Carried], asked: Callable[[], bool] = lambda: True) -> None:
        """Write what groups have that are going to come to the slot, and let its owner read it; return when it has, or after AHEAD_S.
        Unavailable if the node stops, or it is not `asked` any more."""
        deployment, own = self._find(name, slot)

        def gone() -> bool:
            if self._stopping() or self._deployments.get(name) is not deployment or not asked():
                raise Unavailable(f"node {self._across.node} stops, or its slot of deployment {name!r} is not to get key groups any more")
            return False

        with self._servers() as (state, queue):
            carrying.bring_ahead(state, own.keys, coming.copy, carried)
            owner = own.view().owner
            if owner is not None and READS_COPIES not in owner.assigned.abilities:  # started by an earlier release: reads it at the end
                return
            moving.not_prepared(state, own.keys, coming.version)
            ask = partial(moving.prepare, queue, own.keys, coming.version, coming.groups, 0, coming.copy)
            reads = OwnerReads(self._node, own, coming.version, access.adopting_copy(own.keys, coming.copy), ask)
            try:
                reads.within(state, AHEAD_S, gone)
            finally:
                reads.end()

    def take(self, name: str, slot: int, version: int, carried: Iterator[Carried], copy: str = "") -> None:
        """Bring the groups that were handed over into the slot, once. `copy`: what was brought ahead, and is not in `carried`.

        They are left out if the slot already takes frames by that map but has no record of the groups: it had them, and this node has lost
        its disk since. Its present state of these groups is from a store, and may be newer.
        """
        _, own = self._find(name, slot)
        with self._servers() as (state, queue):
            copy = carrying.copied(state, own.keys, version, copy or secrets.token_hex(8), carried)
            with self._routes:
                if copy and route.version(queue, own.keys) >= version:
                    carrying.leave_out(state, own.keys, version)
                else:
                    carrying.take(state, own.keys, version, copy)

    def adopt(self, name: str, slot: int, version: int, placement: Mapping[str, Any], wait_s: float = ADOPT_S) -> None:
        """Let the slot adopt them; return when they are durably its own. Unavailable after `wait_s`."""
        deployment, own = self._find(name, slot)
        with self._lock, self._servers() as (state, queue):
            if not carrying.is_taken(state, own.keys, version):
                raise ProtocolError(f"slot {slot} of deployment {name!r} was not brought what it is to adopt by version {version}")
            self._adopt(deployment, own, state, queue, version, self._across.learn_one(name, placement), time.monotonic() + wait_s)

    def resume(self, deployment: NodeDeployment, placed: Placement) -> None:
        """After a start, or the loss of the queue server: adopt, without being asked, the groups that wait for a map now in force."""
        with self._lock, self._servers() as (state, queue):
            for own in deployment.own:
                version = carrying.taken(state, own.keys)
                if version and placed.version >= version and not moving.is_adopted(state, own.keys, version):
                    self._adopt(deployment, own, state, queue, version, placed, time.monotonic() + ADOPT_S)

    def _adopt(
        self, deployment: NodeDeployment, own: Slot, state: Connection, queue: Connection, version: int, placed: Placement, deadline: float
    ) -> None:
        now = placed.map(deployment.config.instance.key_groups)
        place = placed.of(self._across.node)[deployment.own.index(own)]
        began = time.monotonic()
        adopted = partial(moving.is_adopted, state, own.keys, version)

        def gone() -> bool:
            if time.monotonic() > deadline:
                raise Unavailable(f"slot {own.number} of deployment {deployment.name!r} has not adopted its key groups yet; it goes on")
            if self._stopping() or self._deployments.get(deployment.name) is not deployment:
                raise Unavailable(f"node {self._across.node} stops, or deployment {deployment.name!r} was removed: nothing is adopted now")
            return False

        cut_and_wait(queue, own.keys, table(placed, now, place), None, adopted, gone)
        self.tell_map(state, queue, deployment, placed)
        ms = round((time.monotonic() - began) * 1000, 1)
        _log.info("key groups have come from another node", deployment=deployment.name, slot=own.number, version=version, adopted_ms=ms)

    def tell_map(self, state: Connection, queue: Connection, deployment: NodeDeployment, placed: Placement) -> bool:
        """Tell the slots of a new queue server by which map they take frames. Return whether all know it, so that lanes may be opened in
        them.

        False while groups wait here to be adopted by that map, and while the cut of a move has to be made once more: the slot would take
        frames of groups that it has given away.
        """
        now, done = placed.map(deployment.config.instance.key_groups), True
        for place, slot in zip(placed.of(self._across.node), deployment.own, strict=False):
            if (version := now.routes.get(place)) is None or route.version(queue, slot.keys) >= version:
                continue
            with self._routes:
                taken = carrying.taken(state, slot.keys)
                if taken and not moving.is_adopted(state, slot.keys, taken):
                    done &= placed.version < taken
                else:
                    route.change(queue, slot.keys, table(placed, now, place))
        intent = moving.noted(state, deployment.slot.keys)
        if intent is not None and intent.cut > placed.version:
            done &= any(route.version(queue, slot.keys) >= intent.cut for slot in deployment.own)
        return done

    def _find(self, name: str, slot: int) -> tuple[NodeDeployment, Slot]:
        deployment = self._deployments.find(name)
        if self._across.find(name) is None:
            raise UsageError(f"deployment {name!r} is not spread over nodes: its key groups move on one node only")
        for own in deployment.own:
            if own.number == slot:
                return deployment, own
        numbers = ", ".join(str(own.number) for own in deployment.own)
        raise NotFound(f"deployment {name!r} has no slot {slot} on node {self._across.node}; it has {numbers}")

    @contextmanager
    def _servers(self) -> Iterator[tuple[Connection, Connection]]:
        servers = self._node.servers
        with contextlib.closing(servers.connect("state")) as state, contextlib.closing(servers.connect("queue")) as queue:
            yield state, queue


class RemoteTaker:
    """The Takes of another node, over its port."""

    def __init__(self, node: NodeClient) -> None:
        self._node = node

    def ready(self, name: str, slot: int) -> Ready:
        """As Takes.ready."""
        reply = self._node.ready_to_take(name, slot)
        return Ready(reply.place, reply.reads_ahead)

    def ahead(self, name: str, slot: int, coming: Coming, carried: Iterator[Carried]) -> None:
        """As Takes.ahead."""
        header = pb.GroupsPart(deployment=name, slot=slot, version=coming.version, copy=coming.copy, groups=coming.groups)
        self._node.read_groups_ahead(header, carried)

    def take(self, name: str, slot: int, version: int, carried: Iterator[Carried], copy: str = "") -> None:
        """As Takes.take."""
        self._node.take_groups(pb.GroupsPart(deployment=name, slot=slot, version=version, copy=copy), carried)

    def adopt(self, name: str, slot: int, version: int, placement: Mapping[str, Any]) -> None:
        """As Takes.adopt."""
        self._node.adopt_groups(name, slot, version, json.dumps(placement), ADOPT_S)
