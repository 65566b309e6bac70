"""Moves of key groups between the slots of a keyed deployment, while queries run (udo_protocol/state/moving.py has the steps).

The intent is noted on the state server before the first step. A manager that starts, or whose queue server was lost, goes on from what it
finds there: each step is repeated until its result shows. A deployment has one move at a time, and none while its version changes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Condition, Event

import structlog

from node_manager.deployments.across import Across
from node_manager.deployments.between import MoveBetween, PlacementMoves, Taker
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.move_steps import (
    DIRECT,
    STRATEGIES,
    MoveSteps,
    Progress,
    in_force,
    restore_routes,
    source_of,
)
from node_manager.deployments.reading_ahead import LOOK_CEILING_US, LOOK_INCREMENT_US, Interrupted
from node_manager.deployments.taking import RemoteTaker, Takes
from node_manager.slots.loading import NodeParts
from udo_protocol import supervised
from udo_protocol.errors import Conflict, NotFound, UdoError, Unavailable, UsageError, WaitTimeout
from udo_protocol.queue import route
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import MOVES_GROUPS
from udo_protocol.state import carrying, group_map, moving
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.moving import Intent
from udo_protocol.state.placement import PendingMove, Placement

# The pause after an error, usually because a server is away.
_AGAIN_S = 0.2
_log = structlog.get_logger()


class Moves:
    """The moves of one node. Methods may be called from any thread. `waited` gets a deployment and the seconds its key groups waited."""

    def __init__(
        self,
        node: NodeParts,
        deployments: Deployments,
        across: Across,
        registry: PlacementMoves | None,
        waited: Callable[[str, float], None],
    ) -> None:
        self._node, self._deployments, self._across, self._registry, self._waited = node, deployments, across, registry, waited
        self._under_way: dict[str, Progress] = {}
        self._changed = Condition()
        self._stopping = Event()
        self.takes = Takes(node, deployments, across, self.require_able, self._stopping.is_set)

    # -- the map -----------------------------------------------------------------------------------------------------

    def map(self, deployment: NodeDeployment) -> SlotGroups:
        """The deployment's map: which slot has which key group."""
        with contextlib.closing(self._node.servers.connect("state")) as state:
            return self.of(state, deployment)

    def of(self, state: Connection, deployment: NodeDeployment) -> SlotGroups:
        """The same as `map`, over that connection."""
        return in_force(state, deployment)

    def in_force(self, deployment: NodeDeployment, deadline: float) -> tuple[SlotGroups, str]:
        """The map by which a lane that is opened now is to send, and the run id of its queue server. Unavailable after `deadline`.

        If a queue server was lost during a move, the source may have handed over while the new server knows of no cut: that is made first.
        """
        backoff = LinearBackoff(LOOK_INCREMENT_US, LOOK_CEILING_US)
        while True:
            with _servers(self._node) as (state, queue):
                if placed := self._across.find(deployment.name):
                    if self.takes.tell_map(state, queue, deployment, placed):  # the node that was asked gives the map of all nodes
                        return SlotGroups(placed.version, {slot.number: 0 for slot in deployment.own}, ()), queue.run_id
                    if time.monotonic() > deadline:
                        raise self._moving_still(deployment)
                    backoff.pause()
                    continue
                intent = moving.noted(state, deployment.slot.keys)
                now = self.of(state, deployment)
                if intent is None or intent.cut <= now.version:
                    return now, queue.run_id
                if route.version(queue, SlotKeys(deployment.name, source_of(now, intent)[0])) >= intent.cut:
                    return now, queue.run_id
            if time.monotonic() > deadline:
                raise self._moving_still(deployment)
            backoff.pause()

    def _moving_still(self, deployment: NodeDeployment) -> Unavailable:
        return Unavailable(f"key groups of deployment {deployment.name!r} are being moved on node {self._node.settings.node}")

    def over_nodes(self, name: str) -> bool:
        """Whether the registry has the deployment's map, since its slots are on several nodes."""
        return self._across.find(name) is not None

    def fix(self, deployment: NodeDeployment) -> None:
        """Store the map before the deployment is given other slots: while none is stored, it follows from the present slots."""
        with contextlib.closing(self._node.servers.connect("state")) as state:
            moving.put(state, deployment.slot.keys, self.of(state, deployment), only_if_none=True)

    def leave_out(self, deployment: NodeDeployment, numbers: Sequence[int]) -> None:
        """Take these slots, which have no groups any more, out of the map: attempts that begin from now on do not END there."""
        with contextlib.closing(self._node.servers.connect("state")) as state, self._changed:
            self.require_none(deployment.name)
            now = self.of(state, deployment)
            for number in numbers:
                now = now.without(number) if number in now.routes else now
            moving.put(state, deployment.slot.keys, now)

    # -- moves -------------------------------------------------------------------------------------------------------

    def require_none(self, name: str) -> None:
        """Conflict while key groups of the deployment are being moved."""
        deployment = self._deployments.find(name)
        if not deployment.may_be_keyed:
            return
        with contextlib.closing(self._node.servers.connect("state")) as state:
            if moving.noted(state, deployment.slot.keys) is not None or self._coming(state, deployment):
                raise self._under_move(name)

    def tell(self, state: Connection, deployment: NodeDeployment, tell: Callable[[], int]) -> int | None:
        """Append a frame to the log of one of its slots by `tell`, unless key groups move: a slot compares such a frame with the last one
        that it got."""
        with self._changed:
            return tell() if moving.noted(state, deployment.slot.keys) is None else None

    def _coming(self, state: Connection, deployment: NodeDeployment) -> bool:
        """Whether key groups from another node wait to be adopted."""
        if self._across.find(deployment.name) is None:
            return False
        taken = ((slot.keys, carrying.taken(state, slot.keys)) for slot in deployment.own)
        return any(version and not moving.is_adopted(state, keys, version) for keys, version in taken)

    def _under_move(self, name: str) -> Conflict:
        where = f"node {self._node.settings.node}"
        return Conflict(f"key groups of deployment {name!r} are being moved on {where}: try again when that is done")

    @contextmanager
    def none_during(self, name: str) -> Iterator[None]:
        """Conflict if key groups of the deployment move while the block runs, which reads one slot after the other."""
        deployment = self._deployments.find(name)
        self.require_none(name)
        before = self.map(deployment), self._across.find(name)
        yield
        self.require_none(name)
        if (self.map(deployment), self._across.find(name)) != before:
            raise self._under_move(name)

    def move(self, name: str, groups: Sequence[int], to: int, strategy: str, wait_s: float, node: str = "") -> Iterator[Progress]:
        """Move these key groups to that slot; yield the progress. The same call again goes on with the move, or changes nothing.

        `node`: the node that has the slot, for a deployment over nodes; of the groups only those that this node has are moved.
        WaitTimeout after `wait_s`, though the move goes on. Unavailable if the node stops: its next manager goes on.
        """
        deployment = self._deployments.find(name)
        wanted = sorted(set(groups))
        placed = self._across.find(name)
        over = placed is not None
        if placed is not None:
            placed.require_no_replicas(name, "its key groups cannot be moved")
        self._require(deployment, wanted, to, strategy, (node or self._across.node) if over else node)
        if over:
            self._require_none_lost(deployment)
        with contextlib.closing(self._node.servers.connect("state")) as state, self._changed:
            intent = Intent(tuple(wanted), to, strategy, node=(node or self._across.node) if over else "")
            noted = moving.noted(state, deployment.slot.keys)
            if noted is not None and replace(noted, cut=0) != intent:
                raise Conflict(f"key groups of deployment {name!r} are being moved to slot {noted.to}: try again when that is done")
            if noted is None:
                self.require_quiet(deployment)
                self.require_able(deployment)
                moving.note(state, deployment.slot.keys, intent)
            progress = self._begin(deployment, intent)
        deadline = time.monotonic() + wait_s
        told = None
        while True:
            with self._changed:
                same = told is not None and (progress.moved, progress.done) == told
                if same and self._under_way.get(name) is not progress:
                    raise Unavailable(f"node {self._node.settings.node} stops, or deployment {name!r} was removed: the move is not done")
                if same and not self._changed.wait(max(deadline - time.monotonic(), 0)):
                    left, why = progress.total - progress.moved, f": {progress.trouble}" if progress.trouble else ""
                    raise WaitTimeout(f"waited {wait_s:g} s for {left} key groups of {name} to get to slot {to}; the move goes on{why}")
                now = progress.moved, progress.done
            if now != told:
                told = now
                yield Progress(*now[:1], progress.total, now[1], progress.trouble)
            if now[1]:
                return

    def _require(self, deployment: NodeDeployment, groups: Sequence[int], to: int, strategy: str, node: str) -> None:
        name = deployment.name
        if not deployment.may_be_keyed:
            raise UsageError(f"deployment {name!r} keeps no state, so it has no key groups to move; its slots: udo scale {name}")
        if node and self._across.find(name) is None:
            raise UsageError(f"deployment {name!r} has slots of its own on each node: expected the number of one here, got one of {node}")
        there = [slot.number for slot in deployment.own]
        if to not in there and node in ("", self._across.node):
            numbers = ", ".join(map(str, there))
            raise NotFound(f"deployment {name!r} has no slot {to} on node {self._node.settings.node}; it has {numbers}")
        most = deployment.config.instance.key_groups
        if not groups or groups[0] < 0 or groups[-1] >= most:
            shown = f"{groups[0]} to {groups[-1]}" if groups else "none"
            raise UsageError(f"deployment {name!r} has the key groups 0 to {most - 1}: expected some of these, got {shown}")
        if strategy not in STRATEGIES:
            raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")

    def _require_none_lost(self, deployment: NodeDeployment) -> None:
        """Conflict while the registry has a move of this node that the node forgot when it lost its disk: that one is to end first
        (reconcile/lost_moves.py)."""

        def noted(state: Connection) -> bool:
            return moving.noted(state, deployment.slot.keys) is not None

        with contextlib.closing(self._node.servers.connect("state")) as state:
            if self._registry is None or noted(state):
                return
            pending = Placement.parse(self._registry.deployment(deployment.name)["placement"], keyed=True).moving
            if pending is not None and pending.node == self._across.node and not noted(state):
                raise self._under_move(deployment.name)

    def require_able(self, deployment: NodeDeployment) -> None:
        """Conflict if an instance, adopted from an earlier release, would always take the frames of a move for broken ones."""
        for slot in deployment.own:
            owner = slot.view().owner
            if owner is not None and MOVES_GROUPS not in owner.assigned.abilities:
                raise Conflict(
                    f"instance {owner.name} in slot {slot.number} of deployment {deployment.name!r} was started by an earlier release, "
                    f"which cannot move key groups: replace it (udo update {deployment.name} VERSION), or end its process (udo status)"
                )

    def require_quiet(self, deployment: NodeDeployment) -> None:
        """Conflict while an update or a canary depends on where the state lies now."""
        name = deployment.name
        versions = {slot.wanted.image.digest for slot in deployment.own if slot.wanted is not None}
        if len(versions) > 1 or any(slot.updating for slot in deployment.own) or deployment.canary is not None:
            raise Conflict(f"the version of deployment {name!r} is being changed: move key groups when that is done")

    def _begin(self, deployment: NodeDeployment, intent: Intent) -> Progress:
        """Start a thread that carries out the move, if there is none. The caller holds the lock."""
        name = deployment.name
        if name not in self._under_way:
            self._under_way[name] = Progress(0, len(intent.groups))
            supervised.keep("move", partial(self._carry_out, deployment, intent), self._stopping, name)
        return self._under_way[name]

    def go_on(self, name: str, pending: PendingMove, node: str, to: int) -> None:
        """Go on with a move to slot `to` of `node` that this node, according to the registry, has begun, and no longer knows."""
        deployment = self._deployments.find(name)
        with contextlib.closing(self._node.servers.connect("state")) as state, self._changed:
            if moving.noted(state, deployment.slot.keys) is None:
                intent = Intent(pending.groups, to, DIRECT, cut=pending.version, node=node)
                moving.note(state, deployment.slot.keys, intent)
                self._begin(deployment, intent)

    def resume(self) -> None:
        """Go on with the moves that a former manager began, and let the slots of a new queue server take frames by the present maps."""
        for deployment in self._deployments.all():
            if deployment.may_be_keyed:
                supervised.keep("move", partial(self._resume, deployment), self._stopping, deployment.name)

    def _resume(self, deployment: NodeDeployment) -> None:
        while not self._gone(deployment):
            try:
                if placed := self._across.find(deployment.name):
                    self.takes.resume(deployment, placed)
                with _servers(self._node) as (state, queue):
                    if placed:
                        self.takes.tell_map(state, queue, deployment, placed)
                    elif (now := group_map.load(state, deployment.slot.keys)) is not None:
                        restore_routes(state, queue, deployment, now)
                    intent = moving.noted(state, deployment.slot.keys)
                if intent is not None:
                    with self._changed:
                        self._begin(deployment, intent)
                return
            except UdoError as e:
                _log.warning("routes are not restored yet", deployment=deployment.name, error=str(e))
                self._stopping.wait(_AGAIN_S)

    def stop(self) -> None:
        """Begin no more steps; the next manager goes on."""
        self._stopping.set()

    def _gone(self, deployment: NodeDeployment) -> bool:
        return self._stopping.is_set() or self._deployments.get(deployment.name) is not deployment

    def _carry_out(self, deployment: NodeDeployment, intent: Intent) -> None:
        name = deployment.name
        progress = self._under_way[name]
        steps = self._steps(deployment, intent)
        while not self._gone(deployment):
            try:
                with _servers(self._node) as (state, queue):
                    steps.run(state, queue, intent, progress)
                    with self._changed:  # in one step: a caller that asks for the next move finds this one, or none
                        moving.note(state, deployment.slot.keys, None)
                        progress.done = True
                        self._ended(name)
                return
            except Interrupted:
                break
            except UdoError as e:
                progress.trouble = str(e)
                _log.warning("a move of key groups does not get on", deployment=name, error=str(e))
                self._stopping.wait(_AGAIN_S)
        with self._changed:
            self._ended(name)

    def _steps(self, deployment: NodeDeployment, intent: Intent) -> MoveSteps | MoveBetween:
        gone = partial(self._gone, deployment)
        if not intent.node or self._registry is None:
            return MoveSteps(self._node, deployment, self._stopping, self._changed, gone)
        waited = partial(self._waited, deployment.name)
        return MoveBetween(deployment, self._across, self._registry, self.taker, self._changed, gone, waited)

    def taker(self, node: str) -> Taker:
        """The node's part in a move to it."""
        return self.takes if node == self._across.node else RemoteTaker(self._across.connect(node))

    def _ended(self, name: str) -> None:
        """Forget the move. The caller holds the lock."""
        self._under_way.pop(name, None)
        self._changed.notify_all()


@contextmanager
def _servers(node: NodeParts) -> Iterator[tuple[Connection, Connection]]:
    """Connections to (state, queue)."""
    with contextlib.closing(node.servers.connect("state")) as state, contextlib.closing(node.servers.connect("queue")) as queue:
        yield state, queue
