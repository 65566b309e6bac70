"""The plant of a node's controllers: its monitor, its deployments, their slots."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import structlog

from elasticity import policies
from elasticity.scaling import managed
from elasticity.scaling.journal import Woken
from elasticity.scaling.model import KeyGroups, Kind, Sample
from elasticity.scaling.modes import OFF, Elasticity
from node_manager.control.controllers import Controlled
from node_manager.control.downtime import Downtime
from node_manager.control.monitor import Monitor
from node_manager.control.neighbours import Neighbours
from node_manager.control.samples import STATELESS, KeyedFigures, host, sample
from node_manager.deployments.across import Across
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.move_steps import CPAL
from node_manager.deployments.moves import Moves
from node_manager.deployments.scale_out import ScaleOuts
from node_manager.slots.loading import NodeParts
from udo_protocol import supervised
from udo_protocol.errors import Conflict, UsageError
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.state import rewinding
from udo_protocol.state.placement import Placement

_log = structlog.get_logger()
# Loading a new slot's operator has a bound of its own; this one is for a node that is short of everything.
_SCALE_WAIT_S = 120.0
# Bound on the wait for a slot to fall asleep, which is its next step.
_SLEEP_WAIT_S = 30.0


@dataclass(frozen=True)
class Sensors:
    """The parts that measure the node and those around it."""

    monitor: Monitor
    neighbours: Neighbours
    downtime: Downtime


class NodePlant:
    """See the module; implements `controllers.Plant`. `names`: balancing policies of the node's own."""

    def __init__(
        self,
        node: NodeParts,
        sensors: Sensors,
        deployments: Deployments,
        scale_outs: ScaleOuts,
        moves: Moves,
        across: Across,
        names: policies.Names,
    ) -> None:
        self.node, self.cores, self._servers = node.settings.node, sensors.monitor.cores, node.servers
        self._monitor, self._neighbours, self._downtime = sensors.monitor, sensors.neighbours, sensors.downtime
        self._deployments, self._scale_outs, self._moves, self._across = deployments, scale_outs, moves, across
        self._own, self._shipped = names.get("balance", {}), policies.shipped()["balance"]

    def deployments(self) -> list[Controlled]:
        return [self.controlled(d) for d in self._deployments.all()]

    def controlled(self, deployment: NodeDeployment) -> Controlled:
        """The deployment as the controllers see it: the scaling wished for it, and the obstacle to carrying that out."""
        wanted, obstacle = deployment.slot.wanted, ""
        placed = self._across.find(deployment.name)
        over_nodes = placed is not None or deployment.in_all > 1
        if over_nodes:
            obstacle = "its slots are spread over nodes, and stay where they are"
        changing = deployment.canary is not None or any(slot.updating for slot in deployment.own)
        changing |= deployment.preparation is not None and deployment.preparation.phase != "prepared"
        changing |= placed is not None and placed.step is not None
        try:
            wish = deployment.config.elasticity
        except UsageError as e:  # written by a later release
            _log.warning("no decisions about a deployment", deployment=deployment.name, error=str(e))
            wish = Elasticity(OFF)
        if wanted is not None and wanted.image.manifest.key:
            wish = replace(wish, idle_after_s=0.0)  # a keyed deployment does not sleep: its state is in its instance
        if name := wish.settings.get("balance"):
            there = {**self._shipped, **self._own}
            if name not in there:
                obstacle = obstacle or f"node {self.node} has no balancing policy {name!r}; it has {', '.join(sorted(there))}"
            wish = wish.balanced_by(self._own.get(name) or (name if name in there else ""))
        membership = deployment.config.application if wish.mode != OFF else None
        if membership is not None:
            wish = replace(wish, mode=membership.mode, idle_after_s=0.0)
        steps = over_nodes and wanted is not None and (placed is None or placed.replication is None)
        spread = (managed.WITH_STATE if wanted.image.manifest.key else managed.STATELESS) if steps and wanted is not None else 0
        return Controlled(deployment.name, wish, obstacle, wanted is None or changing, membership, spread)

    def sample(self, name: str, at_s: float, most: int) -> Sample:
        deployment = self._deployments.find(name)
        own, wanted = deployment.own, deployment.slot.wanted
        slots = [(slot.number, self._monitor.rates(name, slot.number)) for slot in own if not slot.asleep]
        room = MOST_SLOTS - len(self._deployments.slots())
        key_groups = wanted.config.key_groups if wanted and wanted.image.manifest.key else 0
        prepared = deployment.preparation.slots if deployment.preparation else 0
        keyed = KeyedFigures(key_groups, self._groups(deployment), prepared) if key_groups else STATELESS
        seen = sample(at_s, name, slots, host(self.node, self._monitor.node_use, room), most, keyed)
        if deployment.config.in_application:
            around = self._neighbours.around(seen.nodes[0])
            seen = replace(seen, nodes=around, downtime_ms=dict(self._downtime.costs_ms(name)))
        return seen

    def _groups(self, deployment: NodeDeployment) -> KeyGroups | None:
        """The places of the key groups, and their load. Conflict while they move, and while a move would make a rollback impossible."""
        self._moves.require_none(deployment.name)
        with contextlib.closing(self._servers.connect("state")) as state:
            if any(rewinding.kept(state, slot.keys) for slot in deployment.own):
                raise Conflict(f"deployment {deployment.name!r} can be rolled back by what is kept of its state, which a move would end")
        if (placed := self._across.find(deployment.name)) is not None:
            return self._groups_over_nodes(deployment, placed)
        now = self._moves.map(deployment)
        place = {slot.number: at for at, slot in enumerate(deployment.own)}
        if not place.keys() >= set(now.groups):  # the number of slots is being changed
            return None
        return KeyGroups(tuple(place[n] for n in now.groups), tuple(self._monitor.groups.events(deployment.name, len(now.groups))))

    def _groups_over_nodes(self, deployment: NodeDeployment, placed: Placement) -> KeyGroups | None:
        """The same over all nodes, as the registry last told the loads. None unless they are known of all of them."""
        events, own = self._neighbours.events(deployment.name, placed.nodes), placed.of(self.node)
        if events is None or len(own) != len(deployment.own):  # the number of slots is being changed
            return None
        others = [place for place in range(len(placed.nodes)) if place not in own]
        at = {place: i for i, place in enumerate((*own, *others))}
        return KeyGroups(tuple(at[place] for place in placed.map(len(events)).groups), events, tuple(map(placed.name, others)))

    def events(self, name: str) -> list[int]:
        """The events of each key group in the slots of this node, lately; none if the deployment has just gone."""
        deployment = self._deployments.get(name)
        wanted = deployment.slot.wanted if deployment is not None else None
        return self._monitor.groups.events(name, wanted.config.key_groups) if wanted is not None else []

    def scale(self, name: str, slots: int) -> None:
        deployment = self._deployments.find(name)
        before, down_s = len(deployment.own), self._downtime.seconds(name)
        if any(slot.updating for slot in deployment.own):
            raise Conflict(f"the version of deployment {name!r} is being changed: its number of slots stays until that is done")
        strategy, _ = self._scales_out_by(deployment)
        self._scale_outs.scale(name, max(slots, 1), _SCALE_WAIT_S, strategy)
        if slots:
            deployment.slot.wake()
        else:
            deployment.slot.sleep().result(_SLEEP_WAIT_S)
        kind: Kind = "scale_out" if slots > before else "scale_in"
        self._downtime.cost(name, kind, 1000 * (self._downtime.seconds(name) - down_s))

    def prepare(self, name: str, slots: int) -> None:
        strategy, refresh_s = self._scales_out_by(self._deployments.find(name))
        self._scale_outs.prepare(name, slots, strategy, refresh_s, _SCALE_WAIT_S)

    def stand_down(self, name: str) -> None:
        self._scale_outs.stand_down(name)

    def _scales_out_by(self, deployment: NodeDeployment) -> tuple[str, float]:
        return deployment.config.elasticity.scales_out_by

    def wakes(self, name: str) -> list[Woken]:
        return [Woken(w.slot, round(w.at_s, 3), round(w.answer_ms, 1)) for w in self._deployments.find(name).slot.wakes()]

    def move(self, name: str, groups: Sequence[tuple[int, str]]) -> None:
        for to, some in groupby(sorted(groups, key=lambda g: int(g[1])), lambda g: int(g[1])):
            for _ in self._moves.move(name, [g for g, _ in some], to, CPAL, _SCALE_WAIT_S):
                pass

    def beside(self, work: Callable[[], None], about: str) -> None:
        supervised.once("scaling", work, about)
