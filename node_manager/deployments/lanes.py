"""Finds the slot that a producer is to push to: by deployment, pinned version, epoch or canary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from node_manager.deployments.between import PlacementMoves
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.moves import Moves
from node_manager.homes import GroupMaps, Homes, SessionRequest, require_whole
from node_manager.images.images import Images, OperatorImage, Source
from node_manager.slots.loading import NodeParts, Wanted
from node_manager.slots.slot import Slot
from node_manager.trials.canaries import Canary
from udo_protocol.errors import Conflict, NotFound, SlotBroken, UdoError, Unavailable, UsageError
from udo_protocol.formats.schema import from_ipc, require_fit
from udo_protocol.queue import route
from udo_protocol.queue import slot as log
from udo_protocol.registry.wanted import MovedSession
from udo_protocol.state import checkpoints, replication
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.placement import Placement

# Remembered bindings of epochs to versions, of a deployment without a registry.
_EPOCHS = 1000
# A repair takes a few round trips once an instance has ended.
_REPAIR_POLL_S = 0.05
# Replicas know of a run within milliseconds; callers that do not wait for an instance wait this long for them.
_KNOWN_S = 2.0


class Catalogue(Source, GroupMaps, PlacementMoves, Protocol):
    """The registry's operations that this module uses."""

    def epoch(self, name: str, session: str, epoch: int) -> Mapping[str, Any]:
        """`{version, digest}` bound to (session, epoch) by the first caller."""

    def plan(self, deployment: str) -> int:
        """A number for a plan, above all that were given before."""


@dataclass(frozen=True)
class QueryRun:
    """A keyed session's run: its name, the call in the query, the number of its plan. `stored`: the session has a store, so this node may
    have known runs of it and lost its disk since."""

    session: str
    run: str
    call: str
    plan: int
    stored: bool


@dataclass(frozen=True)
class Lane:
    """The answer to OpenLane."""

    image: OperatorImage
    slots: tuple[Slot, ...]  # keyed: all slots of the deployment; else one
    run_id: str
    groups: SlotGroups | None = None  # keyed: which slot has which key group

    @property
    def slot(self) -> Slot:
        """The first slot, which also keeps what concerns the session as a whole: its home, the order of its runs."""
        return self.slots[0]


def require_groups(name: str, came: int, wanted: Wanted | None) -> None:
    """Conflict if a producer spreads keys over another number of groups than the deployment has."""
    there = wanted.config.key_groups if wanted else came
    if came != there:
        raise Conflict(
            f"deployment {name!r} has {there} key groups, and the query was planned with {came}: it was deployed anew since. Build the "
            "query's DataFrame again (call udo(...)), and start it with the state that fits"
        )


class Lanes:
    """Opens the lanes of one node. Methods may be called from any thread."""

    def __init__(
        self, node: NodeParts, deployments: Deployments, images: Images, homes: Homes, moves: Moves, catalogue: Catalogue | None
    ) -> None:
        self._node, self._deployments, self._images, self._homes, self._catalogue = node, deployments, images, homes, catalogue
        self._moves = moves
        # Wanted deployments that cannot be served: name -> reason.
        self.unserved: dict[str, UdoError] = {}
        # The names of wanted deployments; None: the registry has not given them since the node was started.
        self.wanted: Collection[str] | None = () if catalogue is None else None
        self._unheard = ""

    def unheard(self, why: str) -> None:
        """Note why the last request to the registry failed."""
        self._unheard = why

    def awaited(self, name: str) -> str:
        """Why a deployment that may soon be here is not here yet; '' if it is here, cannot be, or is not wanted."""
        node = self._node.settings.node
        if self._deployments.closed or self._deployments.get(name) is not None or name in self.unserved:
            return ""
        if self.wanted is None:
            return f"node {node} was not told yet by its registry what it is to serve{f': {self._unheard}' if self._unheard else ''}"
        return f"deployment {name!r} is wanted on node {node}, and not there yet" if name in self.wanted else ""

    def open(
        self, name: str, *, session: str = "", epoch: int = 0, pin_epoch: bool = False, schema: bytes = b"", wait_s: float = 0.0
    ) -> Lane:
        """Find the slots that a producer is to push to; SchemaError if its events do not fit, OperatorError if the operator cannot load.

        A log that its operator has corrupted is repaired first; SlotBroken if that takes longer than `wait_s`.
        """
        deadline = time.monotonic() + wait_s
        base, _, pin = name.partition("@")
        where = f"node {self._node.settings.node}"
        try:
            deployment = self._deployments.find(base)
        except NotFound:
            if why := self.unserved.get(base):
                raise type(why)(f"deployment {base!r} is not served on {where}: {why}") from None
            raise
        if pin_epoch:
            pin = self._epoch(deployment, session, epoch)
        slot = self._pinned(deployment, pin) if pin else self._own_or_canary(deployment)
        slot.wait_serving(wait_s)
        wanted = slot.wanted
        if wanted is not None and wanted.image.manifest.key and pin:
            raise UsageError(f"{name!r} keeps state, and a pinned version would have a state of its own; call it as udo({base!r})")
        if wanted is None:
            raise Unavailable(f"deployment {name!r} is still starting on {where}")
        if schema:
            what = f"events for {name} ({wanted.reference})"
            remedy = f"Select or cast the columns so that they fit; see: udo inspect {deployment.operator}"
            require_fit(from_ipc(schema), wanted.image.manifest.input_schema, what, remedy)
        slots: tuple[Slot, ...] = (slot,)
        groups, run_id = None, ""
        if wanted.image.manifest.key:
            groups, run_id = self._moves.in_force(deployment, deadline)
            there = {own.number: own for own in deployment.slots}
            if gone := [number for number in groups.slots if number not in there]:
                raise Unavailable(f"the group map of deployment {base!r} on {where} names slot {gone[0]}, which is not there")
            slots = tuple(there[number] for number in groups.slots)
        for other in slots:
            other.wait_serving(max(0.0, deadline - time.monotonic()))
            self._await_repair(other, deadline)
        return Lane(wanted.image, slots, run_id or self._node.servers.run_id("queue"), groups)

    def _await_repair(self, slot: Slot, deadline: float) -> None:
        """Wait until its log is whole: a task that failed because of it is retried before the next periodic look would find the damage."""
        with contextlib.closing(self._node.servers.connect("queue")) as queue:
            while True:
                try:
                    log.slot_stats(queue, slot.keys)
                    return
                except SlotBroken:
                    if time.monotonic() > deadline:
                        raise
                slot.look()
                time.sleep(_REPAIR_POLL_S)

    def begun(self, lane: Lane, session: str, name: str) -> list[int]:
        """Note that a producer is about to open the lane `name` in each slot; return the versions of the routes that it is to use.

        For a keyed deployment these are its map's: a slot that does not know of that version yet lets the producer wait.
        """
        with contextlib.closing(self._node.servers.connect("queue")) as queue:
            if lane.groups is None:
                return [route.version(queue, slot.keys) for slot in lane.slots]
            for slot in lane.slots:
                log.uses(queue, slot.keys, session, name)
            return [lane.groups.routes[slot.number] for slot in lane.slots]

    def require_home(self, lane: Lane, asked: SessionRequest) -> int:
        """The version of a keyed session's map by which this node serves it. StateElsewhere, or StateLost, if it may not serve it."""
        with contextlib.closing(self._node.servers.connect("state")) as state:
            require_whole(state, lane.slot.keys, asked)
            if self._deployments.find(asked.deployment).source != "registry":
                return 0
            return self._homes.require(state, lane.slot.keys, asked)

    def run_order(self, lane: Lane, placed: Placement | None, asked: QueryRun, wait_s: float) -> int:
        """The place of a keyed session's run in the order of its runs; over nodes the first slot of all keeps that order.

        Return when that slot's replicas know the run: another node may have to tell it. Unavailable if they do not within `wait_s`.
        """
        session = asked.session
        deadline, slot = time.monotonic() + max(wait_s, _KNOWN_S), lane.slot
        if placed is not None and placed.nodes[0] == self._node.settings.node:
            if len(lane.slots) <= placed.ordinal(0):
                raise Unavailable(f"node {placed.nodes[0]} is taking over slot 0 of deployment {slot.deployment!r}, which orders the runs")
            slot = lane.slots[placed.ordinal(0)]

        def between() -> None:
            if time.monotonic() > deadline:
                missing = ", ".join(replication.lacking(state, slot.keys)[1])
                raise Unavailable(
                    f"deployment {slot.deployment!r} waits for its replicas on node {missing}, which do not know of a run yet"
                )

        with contextlib.closing(self._node.servers.connect("state")) as state:
            if asked.stored and placed is not None and not checkpoints.has_runs(state, slot.keys, session):
                checkpoints.order_after(state, slot.keys, session, self._new_plan(slot.deployment))
            order = checkpoints.run_order(state, slot.keys, session, asked.run, asked.call, asked.plan)
            if placed is not None and placed.replication is not None:
                replication.await_held(state, slot.keys, between)
            return order

    def _new_plan(self, deployment: str) -> int:
        assert self._catalogue is not None, "a deployment over nodes has a registry"
        return self._catalogue.plan(deployment)

    def forget_homes(self, moved: Iterable[MovedSession]) -> None:
        """Forget sessions whose group map has a newer version by now."""
        self._homes.moved({d.name: d.slot.keys for d in self._deployments.all()}, moved)

    def _own_or_canary(self, deployment: NodeDeployment) -> Slot:
        with self._deployments.lock:
            canary = deployment.canary
            if isinstance(canary, Canary) and canary.takes():
                return canary.slot
            own = deployment.own
        return self._least_loaded(own)

    def _least_loaded(self, own: list[Slot]) -> Slot:
        """The slot with the fewest lanes among those that answer; among equals the one chosen least recently."""
        answering, lanes = [slot for slot in own if slot.view().owner] or own, dict[Slot, int]()
        if len(answering) > 1:
            with contextlib.closing(self._node.servers.connect("queue")) as queue:
                lanes = dict(zip(answering, log.open_lanes(queue, [slot.keys for slot in answering]), strict=True))
        with self._deployments.lock:  # taken only now, since the server may let its callers wait
            chosen = min(answering, key=lambda slot: (lanes.get(slot, 0), slot.chosen_at))
            chosen.chosen_at = time.monotonic()
            return chosen

    def _epoch(self, deployment: NodeDeployment, session: str, epoch: int) -> str:
        if deployment.source == "registry" and self._catalogue is not None:
            return str(self._catalogue.epoch(deployment.name, session, epoch)["digest"])
        with self._deployments.lock:  # known to this node only: the first task of an epoch binds it
            while len(deployment.epochs) > _EPOCHS:
                deployment.epochs.pop(next(iter(deployment.epochs)))
            return deployment.epochs.setdefault(f"{session}/{epoch}", deployment.digest)

    def _pinned(self, deployment: NodeDeployment, pin: str) -> Slot:
        """The slot of a pinned version, started on demand."""
        by_digest = pin.startswith("sha256:")
        image = self._images.get(deployment.operator, "" if by_digest else pin, pin if by_digest else "", again=False)
        with self._deployments.lock:
            slot = deployment.pinned.get(image.digest)
            if slot is None:
                slot = self.slot(deployment, image.digest, deployment.take_number())
                self._deployments.save()
                slot.serve(Wanted(image, deployment.config.instance))
            slot.used_at = time.monotonic()
            return slot

    def slot(self, deployment: NodeDeployment, digest: str, number: int) -> Slot:
        """Make the slot of a pinned version. It is removed when it has not been called for a while. Unavailable while the node stops."""
        self._deployments.require_open()

        def retire(slot: Slot) -> None:
            with self._deployments.lock:
                if deployment.pinned.get(digest) is slot:
                    del deployment.pinned[digest]
                    deployment.numbers.pop(digest, None)
                    self._deployments.save()
            slot.stop(drop=True, letters_to=deployment.slot.keys)

        slot = deployment.pinned[digest] = Slot(self._node, deployment.name, number, pinned=digest, on_idle=retire)
        deployment.numbers[digest] = number
        return slot
