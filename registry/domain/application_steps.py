"""Granted steps under way, of deployments with state over nodes: a node moves their key groups (keyed_steps.py).

A step is kept with the deployment's placement. Each look hands the rest of the step to the node that proposed it, until nothing is left or
the node reports that it has done it. So neither the registry nor the node needs to remember anything of the step. A step is given up when
it has not ended within STEP_S, or its application may no longer carry out grants; never while key groups are between two slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any

from elasticity.scaling.application_journal import GrantOutcome
from elasticity.scaling.application_wish import ApplicationWish
from elasticity.scaling.modes import AUTO
from registry.domain import application_lines, keyed_steps, spread_steps
from registry.domain.audit import Caller
from registry.store.models import Deployment
from registry.store.store import Store
from udo_protocol.state.placement import Placement

# A new slot's operator may have to be pulled and loaded first. Key groups that have begun to move are waited for in any case.
STEP_S = 600.0


class Steps:
    """See the module. `look` is called by one thread, the other methods by any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._there: Collection[str] = ()  # steps under way at the last look
        self._said: dict[str, str] = {}  # a step under way -> the node's last report: '' when it has done its part
        self._lock = Lock()  # guards these two
        self.left: Mapping[str, list[dict[str, Any]]] = {}  # node -> [{id, deployment, kind, moves: [[place, groups]], runs_to, slots}]
        self._deployments: set[str] | None = None  # those with steps under way; None: not known yet

    def forget(self) -> None:
        """Forget all steps: another process decides from now on."""
        with self._lock:
            self._there, self._said = (), {}
        self.left, self._deployments = {}, None

    def begun(self, deployment: str) -> None:
        """Note that the deployment has a step under way."""
        self._deployments = {*(self._deployments or ()), deployment}

    def busy(self, deployment: str) -> bool:
        """Whether the deployment has, or may have, a step under way."""
        return self._deployments is None or deployment in self._deployments

    def heard(self, identity: str, error: str) -> None:
        """Take a node's report about its part of a step. A report about another grant is ignored; one that comes before the first look
        is repeated when the node has been handed the step again."""
        with self._lock:
            if identity in self._there:
                self._said[identity] = error

    def look(self, wanted: Mapping[str, ApplicationWish], now_s: float) -> None:
        """Continue the steps that are ready, and hand the rest out to the nodes."""
        if self._deployments == set():
            return
        left, there = dict[str, list[dict[str, Any]]](), dict[str, str]()
        with self._store.read() as session:
            found = [(d.name, now, self._part(d, now, wanted, now_s)) for d, now in spread_steps.under_way(session)]
        for name, now, part in found:
            assert now.step is not None
            there[_identity(name, now)] = name
            if part:  # the next look sees its progress
                self._go_on(name, wanted, now_s)
            else:
                left.setdefault(now.step.node, []).append(_left(name, now))
        self.left, self._deployments = left, set(there.values())
        with self._lock:
            self._there, self._said = there.keys(), {step: self._said[step] for step in there if step in self._said}

    def _part(self, deployment: Deployment, now: Placement, wanted: Mapping[str, ApplicationWish], now_s: float) -> str:
        """The next part of the step: 'emptied', 'done', 'given up', or '' while the node does its part."""
        step, application = now.step, wanted.get(now.step.application) if now.step else None
        if step is None or now.moving is not None:
            return ""
        if part := keyed_steps.next_part(now, self._said.get(_identity(deployment.name, now)) == ""):
            return part
        ours = application is not None and application.mode == AUTO and deployment.name in application.deployments
        return "" if (ours or step.gone) and now_s - step.at_s <= STEP_S else "given up"

    def _go_on(self, name: str, wanted: Mapping[str, ApplicationWish], now_s: float) -> None:
        """Continue the deployment's step, read again by the writing session, since a reader may be behind."""
        with self._store.write() as session:
            for deployment, now in spread_steps.under_way(session, name):
                step, part = now.step, self._part(deployment, now, wanted, now_s)
                if step is None or not part:
                    continue
                slots = spread_steps.go_on(session, Caller(f"application {step.application}", "registry", now_s), deployment, part)
                if part != "emptied":
                    why = "" if part == "done" else f"given up: {self._said.get(_identity(name, now)) or 'the node has not said why'}"
                    outcome = GrantOutcome(step.number, step.node, name, round(now_s, 3), slots, why)
                    application_lines.executed(session, step.application, step.segment, outcome)


def _left(name: str, now: Placement) -> dict[str, Any]:
    """The rest of a step. `slots`: how many the node must have by now; None while that does not matter."""
    assert now.step is not None
    about = {"id": _identity(name, now), "deployment": name, "kind": now.step.kind}
    slots = now.nodes.count(now.step.node) if now.step.gone else None
    return {**about, "moves": [list(move) for move in keyed_steps.moves(now)], "runs_to": keyed_steps.runs_to(now), "slots": slots}


def _identity(name: str, now: Placement) -> str:
    assert now.step is not None
    return f"{now.step.application}:{now.step.segment}:{now.step.number}:{name}{':gone' if now.step.gone else ''}"
