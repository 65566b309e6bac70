"""The Operator Managers' side of an application: reports figures and proposals to the manager in the registry, and carries out its grants.

One call every few seconds. While the registry is away, nothing is granted and deployments keep the slots they have. A grant is carried out
once, and only if the deployment still has the slots that it was proposed for; its outcome is reported until the registry has received it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from threading import Event, Lock
from typing import Any, Protocol

import structlog

from elasticity.scaling import managed
from elasticity.scaling.journal import plan_of
from node_manager.control.controllers import Controlled
from node_manager.manager import Manager
from node_manager.reconcile.granted_moves import GrantedMoves
from udo_protocol import supervised
from udo_protocol.errors import Conflict, NotFound, UdoError
from udo_protocol.limits import MOST_SLOTS

EVERY_S = 2.0
# Grants remembered as carried out: some a minute at most.
_KNOWN = 1000
_log = structlog.get_logger()


class ProposalCalls(Protocol):
    """The part of udo_protocol.registry.api.Registry that is used here."""

    def propose(self, node: str, told: Mapping[str, object]) -> Mapping[str, Any]:
        """Report `told`; return {hosts, grants, moves, loads}."""


class Asking:
    """See the module."""

    def __init__(self, manager: Manager, registry: ProposalCalls) -> None:
        self._manager, self._registry = manager, registry
        self._node = manager.settings.node
        self._every_s = min(EVERY_S, manager.settings.decide_s)
        self._over, self._lock = Event(), Lock()
        self._known: deque[str] = deque(maxlen=_KNOWN)
        self._done: dict[str, dict[str, Any]] = {}  # by grant: its outcome, until the registry has received it
        self._moves = GrantedMoves(manager, partial(self._over_with, replicas=0))

    def start(self) -> None:
        """Start the thread."""
        supervised.keep("asking", self._run, self._over)

    def stop(self) -> None:
        """Stop; nothing more is carried out."""
        self._over.set()

    def _run(self) -> None:
        away = False
        while not self._over.is_set():
            try:
                self.exchange()
                away = False
            except UdoError as e:
                if not away:
                    _log.warning("the registry grants nothing for now; deployments of applications stay as they are", error=str(e))
                away = True
            self._over.wait(self._every_s)

    def exchange(self) -> None:
        """Report, and begin the granted steps."""
        m = self._manager
        with self._lock:
            done = list(self._done.values())
        deployments = [d for d in m.plant.deployments() if d.membership is not None]
        reply = self._registry.propose(
            self._node,
            {
                "use": m.monitor.node_use,
                "room": max(MOST_SLOTS - len(m.deployments.slots()), 0),
                "delays_ms": dict(m.neighbours.delays_ms),
                "deployments": [self._part(d) for d in deployments],
                "done": done,
            },
        )
        with self._lock:
            for told in done:
                self._done.pop(told["id"], None)
        m.neighbours.told(reply["hosts"], reply.get("loads", {}))  # a registry of an earlier release sends no loads
        there = {d.name: d for d in deployments}
        for grant in reply["grants"]:
            if grant["id"] not in self._known and not self._over.is_set():
                self._known.append(grant["id"])
                self._carry_out(grant, there)
        for step in reply.get("moves", ()):
            if not self._over.is_set():
                self._moves.begin(step)

    def _part(self, d: Controlled) -> dict[str, Any]:
        m = self._manager
        try:
            own = [slot for slot in m.deployments.find(d.name).own if not slot.asleep]
        except NotFound:  # it has just gone
            own = []
        seen = [m.monitor.rates(d.name, slot.number) for slot in own]
        measured = [rates for rates in seen if not isinstance(rates, str)]
        responses = [rates.response_ms for rates in measured if rates.response_ms is not None]
        number, replicas, plans = m.controllers.asked(d.name)
        if d.spread:  # the registry knows slots by the names that producers are told
            names = {str(slot.number): f"{self._node}/{at}" for at, slot in enumerate(own)}
            plans = tuple(replace(p, replica=names.get(p.replica or ""), groups=_renamed(p.groups, names)) for p in plans)
        return {
            "deployment": d.name,
            "response_ms": round(max(responses), 3) if responses else None,
            "missing": "" if measured or not own else next(text for text in seen if isinstance(text, str)),
            "down_s": m.downtime.seconds(d.name),
            "number": number,
            "replicas": replicas,
            "proposals": [] if d.obstacle and not d.spread else [asdict(p) for p in plans],
            "events": m.plant.events(d.name) if d.spread == managed.WITH_STATE else [],
        }

    def _carry_out(self, grant: Mapping[str, Any], there: Mapping[str, Controlled]) -> None:
        identity, plan, before = str(grant["id"]), plan_of(grant["plan"]), int(grant["before"])

        def over(replicas: int, error: str) -> None:
            self._over_with(identity, error, replicas)

        try:
            deployment = there.get(plan.operator)
            if deployment is None or deployment.membership is None or deployment.membership.name != grant["application"]:
                raise Conflict(f"deployment {plan.operator!r} does not belong to application {grant['application']!r} on this node")
            self._manager.controllers.carry_out(deployment, int(grant["number"]), before, plan, over)
        except UdoError as e:
            over(before, str(e))

    def _over_with(self, identity: str, error: str, replicas: int) -> None:
        with self._lock:
            self._done[identity] = {"id": identity, "replicas": replicas, "error": error[:2000]}


def _renamed(groups: Sequence[tuple[int, str]], names: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    return tuple((group, names.get(to, to)) for group, to in groups)
