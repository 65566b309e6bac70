"""The Application Managers: figures from nodes about applications' deployments, a decision per interval, and grants for nodes to take.

Nodes send their figures and proposals every few seconds, and receive the grants with the answer; reports are kept in memory only.
A decision is in the journal before anything is granted. A grant is handed out until its node reports the outcome, or until it is too
old: a node that was away carries out nothing late. While the registry is away nothing is granted, and nothing stops. If there are several
registry processes, one decides (Store.leads); the others refuse nodes' reports, which then go to that one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from threading import Event, Lock
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from elasticity.scaling.application import ApplicationSample, ChainPart, Proposal, kept
from elasticity.scaling.application_journal import ApplicationEntry, ApplicationManager, GrantOutcome
from elasticity.scaling.application_wish import ApplicationWish
from elasticity.scaling.journal import Header, plan_of
from elasticity.scaling.modes import AUTO, OFF
from registry.domain import application_lines, applications, spread_steps
from registry.domain.application_steps import Steps
from registry.domain.audit import Caller, iso
from registry.domain.presence import Presence
from registry.store.store import Store
from udo_protocol import supervised
from udo_protocol.errors import UdoError, Unavailable, UsageError
from udo_protocol.limits import MOST_KEY_GROUPS

# A node's figures count for this long: it sends them every few seconds.
TOLD_S = 10.0
# A grant not taken within this time is void: its proposal is based on old figures by then.
GRANT_S = 30.0
_LOOK_S = 0.25
_HOUR_S = 3600.0


class PartBody(BaseModel):
    """A deployment of an application on a node. number: that of the Operator Manager's decision; down_s: since its node manager started;
    events: of each key group in the node's slots lately, of a deployment with state over nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    deployment: str = Field(max_length=100)
    response_ms: float | None = None
    missing: str = Field(default="", max_length=1000)
    down_s: float = 0.0
    number: int = -1
    replicas: int = 0
    proposals: list[dict[str, Any]] = Field(default=[], max_length=16)
    events: list[int] = Field(default=[], max_length=MOST_KEY_GROUPS)


class DoneBody(BaseModel):
    """The outcome of a grant."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: str = Field(max_length=300)
    replicas: int = 0
    error: str = Field(default="", max_length=2000)


class ToldBody(BaseModel):
    """Body of POST /api/v1/nodes/<node>/proposals. delays_ms: round trips to other nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    use: float = 0.0
    room: int = 0
    delays_ms: dict[str, float] = Field(default={}, max_length=10_000)
    deployments: list[PartBody] = Field(default=[], max_length=10_000)
    done: list[DoneBody] = Field(default=[], max_length=1000)


@dataclass(frozen=True)
class _Grant:
    application: str
    segment: int
    number: int
    proposal: Proposal
    at_s: float

    @property
    def id(self) -> str:
        return f"{self.application}:{self.segment}:{self.number}:{self.proposal.plan.operator}"

    def handed_out(self) -> dict[str, Any]:
        p = self.proposal
        return {"id": self.id, "application": self.application, "number": p.number, "before": p.before, "plan": asdict(p.plan)}


@dataclass
class _Running:
    """An application's manager between two decisions."""

    manager: ApplicationManager
    segment: int
    due_s: float = 0.0
    last: ApplicationEntry | None = None
    down_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, deployment) -> as last reported
    judged: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, deployment) -> number of the proposals granted last


class ApplicationManagers:
    """See the module. Methods may be called from any thread; `tick` by one."""

    def __init__(self, store: Store, clock: Callable[[], float], presence: Callable[[Session], Presence]) -> None:
        self._store, self._clock, self._presence = store, clock, presence
        self._told: dict[str, tuple[float, ToldBody]] = {}
        self._grants: dict[str, list[_Grant]] = {}
        self._running: dict[str, _Running] = {}
        self._lock = Lock()
        self._leads = not store.shared
        self._wanted: tuple[int, dict[str, ApplicationWish]] = (-1, {})  # the applications that are not off, as of that generation
        self._steps = Steps(store)

    def take(self, node: str, said: ToldBody) -> dict[str, Any]:
        """Take a node's report; {hosts: {node: {use, room}}, grants: [{id, application, number, before, plan}], moves: see Steps.left,
        loads: {deployment: {nodes, events}}}. loads: of the reported deployments, the events of each key group over these nodes.

        Unavailable if another process decides: the client goes on to that one.
        """
        if not self._leads:
            raise Unavailable("another process of this registry decides about applications")
        for part in said.deployments:
            _plans(part)
        for done in said.done:
            self._steps.heard(done.id, done.error)
        now = self._clock()
        with self._lock:
            self._told[node] = (now, said)
            outcomes = self._outcomes(node, said, now)
            hosts = {name: {"use": t.use, "room": t.room} for name, (at, t) in self._told.items() if now - at < TOLD_S}
            grants = [g.handed_out() for g in self._grants.get(node, [])]
            loads = _loads(
                {p.deployment for p in said.deployments if p.events}, {n: t for n, (at, t) in self._told.items() if now - at < TOLD_S}
            )
        if outcomes:
            with self._store.write() as session:
                for grant, outcome in outcomes:
                    application_lines.executed(session, grant.application, grant.segment, outcome)
        return {"hosts": hosts, "grants": grants, "moves": self._steps.left.get(node, []), "loads": loads}

    def _outcomes(self, node: str, said: ToldBody, now: float) -> list[tuple[_Grant, GrantOutcome]]:
        """Outcomes of grants that are over: the node has carried them out, or has not taken them in time."""
        done, left, found = {d.id: d for d in said.done}, list[_Grant](), list[tuple[_Grant, GrantOutcome]]()
        for grant in self._grants.get(node, []):
            told, plan = done.get(grant.id), grant.proposal.plan
            if told is not None:
                found.append((grant, GrantOutcome(grant.number, node, plan.operator, round(now, 3), told.replicas, told.error)))
            elif now - grant.at_s > GRANT_S:
                late = f"node {node} did not carry it out within {GRANT_S:g} s"
                found.append((grant, GrantOutcome(grant.number, node, plan.operator, round(now, 3), grant.proposal.before, late)))
            else:
                left.append(grant)
        self._grants[node] = left
        return found

    def delays(self) -> dict[str, dict[str, float]]:
        """Round trips in ms from each reporting node to the others."""
        with self._lock:
            return {node: dict(told.delays_ms) for node, (at, told) in self._told.items() if self._clock() - at < TOLD_S}

    def now(self, name: str, wish: ApplicationWish) -> dict[str, Any] | None:
        """The application's figures at the last decision: {at, response_ms, downtime_percent, kept, chain}; None before the first."""
        with self._lock:
            running = self._running.get(name)
            last = running.last if running else None
        if last is None:
            return None
        return {
            "at": iso(last.sample.at_s),
            "response_ms": last.decision.response_ms,
            "downtime_percent": round(last.decision.down_ms / _HOUR_S / 10, 6),
            "kept": kept(last.decision, wish.response_ms, wish.downtime_percent),
            "chain": [asdict(part) for part in last.sample.chain],
        }

    def run(self, stopping: Event) -> None:
        """Decide about the applications that are due, until the registry stops."""
        while not stopping.wait(_LOOK_S):
            try:
                self.tick()
            except Exception:
                supervised.failed("applications")

    def tick(self) -> None:
        """Look at all applications once."""
        self._leads = self._store.leads()
        if not self._leads:
            with self._lock:
                self._told, self._grants, self._running = {}, {}, {}
            self._steps.forget()
            return
        if (generation := self._store.generation) != self._wanted[0]:
            with self._store.read() as session:
                self._wanted = generation, {name: wish for name, wish in applications.wishes(session).items() if wish.mode != OFF}
        wanted, now = self._wanted[1], self._clock()
        self._steps.look(wanted, now)
        with self._lock:
            self._running = {name: r for name, r in self._running.items() if name in wanted}
            self._told = {node: told for node, told in self._told.items() if now - told[0] < TOLD_S}
        for name, wish in wanted.items():
            running = self._running.get(name)
            if running is None or running.manager.header != _header(name, wish):
                self._begin(name, wish, now)
            elif now >= running.due_s:
                self._decide(name, wish, running, now)

    def _begin(self, name: str, wish: ApplicationWish, now: float) -> None:
        """Continue its journal, or begin a segment; the first decision comes an interval later, when nodes have reported."""
        header = _header(name, wish)
        with self._store.write() as session:
            manager, segment = application_lines.go_on(session, name, header) or application_lines.begin(session, name, header)
        with self._lock:
            former = self._running.get(name)
            self._running[name] = _Running(manager, segment, now + wish.interval_s)
            if former is not None:
                self._running[name].down_s, self._running[name].judged = former.down_s, former.judged

    def _decide(self, name: str, wish: ApplicationWish, running: _Running, now: float) -> None:
        with self._store.read() as session:
            live = self._presence(session).live
        with self._lock:
            told = {node: said for node, (_, said) in self._told.items() if node in live}
        at_s = round(max(now, running.last.sample.at_s if running.last else now), 3)  # the clock may have been set back
        silent = ", ".join(node for node in live if node not in told)
        chain = tuple(_part(d, told, silent if live else "no node is live", running.down_s) for d in wish.deployments)
        proposals = tuple(
            Proposal(node, part.number, part.replicas, plan)
            for node, said in sorted(told.items())
            for part in said.deployments
            if part.deployment in wish.deployments and running.judged.get((node, part.deployment), -1) != part.number
            if not self._steps.busy(part.deployment)
            for plan in _plans(part)
        )
        entry = running.manager.decide(ApplicationSample(at_s, chain, proposals))
        try:
            with self._store.write() as session:
                if name not in applications.wishes(session):  # it has just been removed
                    return
                application_lines.decided(session, name, running.segment, entry)
                granted = entry.decision.granted if wish.mode == AUTO else ()
                here = [p for p in granted if spread_steps.is_spread(session, p.plan.operator)]
                for p in here:
                    self._carry_out(session, name, running.segment, entry.number, p, now)
                full = entry.number >= application_lines.SEGMENT_LINES
                begun = application_lines.begin(session, name, running.manager.header) if full else None
        except Exception:  # the manager's memory is ahead of the journal: it is restored from there
            with self._lock:
                self._running.pop(name, None)
            raise
        segment = running.segment
        with self._lock:
            running.due_s, running.last = now + wish.interval_s, entry
            if begun is not None:
                running.manager, running.segment = begun
            for p in entry.decision.granted:
                running.judged[p.node, p.plan.operator] = p.number
                if wish.mode == AUTO and p not in here:
                    self._grants.setdefault(p.node, []).append(_Grant(name, segment, entry.number, p, now))

    def _carry_out(self, session: Session, name: str, segment: int, number: int, p: Proposal, now: float) -> None:
        """Carry out a step of the registry itself, another placement of a deployment over nodes, in the commit of the decision."""
        by, error = Caller(f"application {name}", "registry", now), ""
        try:
            step = (name, segment, number, round(now, 3))
            slots = spread_steps.carry_out(session, by, p.node, p.before, p.plan, step, self._presence(session))
        except UdoError as e:
            slots, error = p.before, str(e)
        if slots is None:
            self._steps.begun(p.plan.operator)
        else:
            application_lines.executed(session, name, segment, GrantOutcome(number, p.node, p.plan.operator, round(now, 3), slots, error))


def _header(name: str, wish: ApplicationWish) -> Header:
    about = {"application": name, "mode": wish.mode, "deployments": list(wish.deployments), "interval_s": wish.interval_s}
    return Header("sla", wish.manager_settings(), 0, about)


def _part(name: str, told: Mapping[str, ToldBody], silent: str, down_s: dict[tuple[str, str], float]) -> ChainPart:
    """A deployment over all nodes that report it; updates `down_s`."""
    there = {node: part for node, said in told.items() for part in said.deployments if part.deployment == name}
    down = 0.0
    for node, part in there.items():
        before = down_s.get((node, name), part.down_s)  # downtime before the first look is not this application's
        down += part.down_s - before if part.down_s >= before else part.down_s  # its node manager was restarted
        down_s[node, name] = part.down_s
    missing = "; ".join(f"node {node}: {part.missing}" for node, part in sorted(there.items()) if part.missing)
    if silent:
        missing = silent if silent == "no node is live" else f"node {silent} tells nothing"
    elif not there:
        missing = "no node tells of it"
    responses = [part.response_ms for part in there.values() if part.response_ms is not None]
    return ChainPart(name, round(max(responses), 3) if responses else None, missing, round(1000 * down, 1))


def _loads(deployments: Collection[str], told: Mapping[str, ToldBody]) -> dict[str, dict[str, list[Any]]]:
    """The events of each key group of these deployments over the nodes that have reported them, and these nodes."""
    found: dict[str, dict[str, list[Any]]] = {name: {"nodes": [], "events": []} for name in deployments}
    for node, said in told.items():
        for part in said.deployments:
            if part.deployment in deployments and part.events:
                load = found[part.deployment]
                load["nodes"].append(node)
                load["events"] = [sum(some) for some in zip_longest(load["events"], part.events, fillvalue=0)]
    return found


def _plans(part: PartBody) -> list[Any]:
    found = []
    for made in part.proposals:
        with contextlib.suppress(TypeError, ValueError):
            plan = plan_of(made)
            if plan.operator == part.deployment and isinstance(plan.gain, int | float) and isinstance(plan.cost_ms, int | float):
                found.append(plan)
                continue
        raise UsageError(f"a proposal about deployment {part.deployment!r}: expected a plan, got {str(made)[:100]}")
    return found
