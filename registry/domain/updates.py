"""The live update: prepare on every live node, then promote on every one. All of its state is in the database.

Nothing in this module waits: each report of a node moves the update on, in one commit, and the hub wakes the nodes and watchers.
Before `promoting` the old version is wanted and serves; the commit that enters `promoting` makes the new one wanted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from registry.domain import audit, canaries, catalogue, configuration, deployments, placements
from registry.domain.audit import Caller, iso
from registry.domain.configuration import ConfigBody
from registry.domain.presence import Presence
from registry.store.models import Deployment, Event, Participant, Update, Version
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound, SchemaError, Unavailable, UsageError, WaitTimeout
from udo_protocol.formats.manifest import LATEST, Manifest, call_misfits, parse, update_refusals
from udo_protocol.lifecycle import UPDATE, UPDATE_OPEN, Lifecycle
from udo_protocol.registry.canary import Measured, verdict

# A canary's progress is shown this often at most, so that a long canary leaves a readable record.
OBSERVED_EVERY_S, OBSERVED_TIMES = 1.0, 60
# A node's report of counters is at most this old: an instance publishes them that often. So the end of a canary is judged by
# reports that came this long after it, however long the registry was away meanwhile.
COUNTED_S = 2.0
# Steps that nodes report; only ready, answering and failed move an update on, the others are shown to its watchers.
NODE_STEPS = ("pulling", "starting", "ready", "promoting", "answering", "failed")
PREVIOUS_KEPT = 20
# Updates of a deployment whose events stay readable; older ones are in the audit trail only.
UPDATES_KEPT = 100


def find(session: Session, update_id: str) -> Update:
    """The update of that id."""
    if update := session.get(Update, update_id):
        return update
    raise NotFound(f"no update {update_id!r} (the last {UPDATES_KEPT} of each deployment are kept; older ones are in the audit trail)")


def describe(session: Session, u: Update) -> dict[str, Any]:
    """An update as the API shows it."""
    names = ("id", "deployment", "action", "who", "from_version", "from_digest", "to_version", "to_digest", "state", "detail", "canary")
    nodes = session.scalars(select(Participant).where(Participant.update_id == u.id).order_by(Participant.node))
    return {
        **{n: getattr(u, n) for n in names},
        "started_at": iso(u.started_at),
        "nodes": [{"node": p.node, "state": p.state, "measured": p.measured} for p in nodes],
        "events": events(session, u.id, 0),
    }


def events(session: Session, update_id: str, after: int) -> list[dict[str, Any]]:
    """The events after the one numbered `after`, oldest first."""
    query = select(Event).where(Event.update_id == update_id, Event.id > after).order_by(Event.id)
    shown = ("phase", "node", "detail", "at_ms", "error_code")
    return [{"seq": e.id, "id": update_id, **{n: getattr(e, n) for n in shown}} for e in session.scalars(query)]


def _manifests(old: Version, new: Version) -> tuple[Manifest, Manifest]:
    return parse(old.manifest, "stored manifest"), parse(new.manifest, "stored manifest")


def target(session: Session, deployment: Deployment, action: str, ref: str | None) -> tuple[Version, str]:
    """The version to go to, and a remark. SchemaError if a running query could not continue with it.

    A rollback is not refused because of its schemas: calls built before the update fit the former version, and leaving a bad version
    must stay possible; calls built since then may not fit, which the remark says. The nodes find out whether the former version
    can have its state back.
    """
    operator = deployment.version.name
    if action == "update":
        new = catalogue.find(session, operator, ref or LATEST)
        if problems := update_refusals(*_manifests(deployment.version, new)):
            raise SchemaError(
                f"update of {deployment.name!r} from {operator}@{deployment.version.version} to @{new.version} refused, running queries "
                f"could not continue: {'; '.join(problems)}. Keep these columns, or deploy the new version under another name"
            )
        return new, ""
    former = [p for p in deployment.previous if ref in (None, p["version"], p["digest"])]
    if not former:
        known = ", ".join(p["version"] for p in deployment.previous) or "none"
        wished = f"former version {ref!r}" if ref else "former version"
        raise NotFound(f"deployment {deployment.name!r} has no {wished} to roll back to; former versions: {known}")
    new = catalogue.find(session, operator, former[0]["digest"])
    problems = call_misfits(*_manifests(deployment.version, new))
    return new, f"calls built for @{deployment.version.version} will not fit: {'; '.join(problems)}" if problems else ""


@dataclass(frozen=True)
class WantedUpdate:
    """A requested update: to a version or digest (None: the newest, or for a rollback the former one), maybe with other variables,
    secrets or files, and with a canary (CanaryBody)."""

    deployment: str
    action: str  # update or rollback
    ref: str | None
    timeout_s: float
    canary: dict[str, Any] | None = None
    config: ConfigBody | None = None


def start(session: Session, caller: Caller, wish: WantedUpdate, there: Presence) -> Update:
    """Begin an update on the live nodes; nodes that are away are recorded in it as `gone`.

    Conflict if no node is live, or another update runs; but a rollback during a canary ends that canary.
    """
    name, action, ref, canary = wish.deployment, wish.action, wish.ref, wish.canary
    deployment = deployments.find(session, name)
    if running := session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(UPDATE_OPEN))):
        if action == "rollback" and running.state == "canary" and ref in (None, running.from_version, running.from_digest):
            detail = f"the canary of update {running.id}"
            audit.record(session, caller, action, deployment=name, before=running.to_digest, after=running.from_digest, detail=detail)
            _roll_back(session, running, f"{caller.who} asked for it", caller.now)
            return running
        raise Conflict(f"deployment {name!r} is already being updated to @{running.to_version} (update {running.id}); one at a time")
    placements.require_still(deployment)
    new, remark = target(session, deployment, action, ref)
    old = deployment.version
    if not there.live:
        raise Conflict(
            f"no node is live, so no node could check or serve {old.name}@{new.version}: {name!r} stays at @{old.version}. Nodes known: "
            f"{there.named() or 'none'}. Start one (udo up, udo node), then try again; see: udo status"
        )
    config = configuration.changed(deployment, wish.config)
    moves = new.digest != old.digest or config is not None
    if canary:
        canaries.require_canary(deployment, new, canary, moves=moves)
    update = Update(
        id=secrets.token_hex(8),
        deployment=name,
        action=action,
        who=caller.who,
        address=caller.address,
        from_version=old.version,
        from_digest=old.digest,
        to_version=new.version,
        to_digest=new.digest,
        state="requested",
        detail="",
        started_at=caller.now,
        deadline_at=caller.now + wish.timeout_s,
        timeout_s=wish.timeout_s,
        config=config,
        canary=canary and {**canary, "since": None},
    )
    session.add(update)
    session.flush()
    nodes = there.live if moves else []
    session.add_all(Participant(update_id=update.id, node=n, state="waiting") for n in nodes)
    session.add_all(Participant(update_id=update.id, node=n, state="gone") for n in there.away if nodes)
    route = f"{old.name}@{old.version} -> @{new.version} on {len(nodes)} node(s)"
    if config is not None:
        route += f", {configuration.told(wish.config)}"
    if nodes and there.away:
        route += f", not on {there.named()}"
    noted = f"{route}, update {update.id}"
    if canary:
        remark = f"{canaries.tries(deployment, canary)} for {canary['for_s']:g} s, rolled back if {canaries.conditions(canary)}"
        noted += f", canary: {remark}"
    audit.record(session, caller, action, deployment=name, before=old.digest, after=new.digest, detail=noted)
    _move(session, update, "canary" if canary else "preparing", caller.now, detail=f"{route}. {remark}".removesuffix(". "))
    bump(session)
    advance(session, update, caller.now)
    return update


def step(session: Session, update_id: str, node: str, phase: str, detail: str, now: float, error_code: str = "") -> None:
    """Record a step that a node reports, with a code if it failed. Late ones, and those of nodes not waited for, change nothing."""
    if phase not in NODE_STEPS:
        raise UsageError(f"unknown step {phase!r} of an update; expected one of {', '.join(NODE_STEPS)}")
    update = session.get(Update, update_id)
    if update is None or update.state not in UPDATE_OPEN:
        return
    _event(session, update, phase if phase != "failed" else "node_failed", now, node=node, detail=detail, error_code=error_code)
    part = session.get(Participant, (update_id, node))
    if part is None or (part.state == "gone" and phase == "failed"):
        return
    if phase == "failed":
        part.state = "failed"
        if update.state == "canary" and update.canary and update.canary["since"] is not None:
            return _roll_back(session, update, f"node {node}: {detail}", now)
        return _fail(session, update, f"node {node}: {detail}", now, error_code)
    if phase == "answering" or (phase == "ready" and part.state != "answering"):  # a report may come twice, and late
        part.state = phase
        advance(session, update, now)
    return None


def advance(session: Session, update: Update, now: float) -> None:
    """Advance as far as the participants' states allow."""
    session.flush()
    if update.state == "canary":
        return _share(session, update, now)
    parts = session.scalars(select(Participant).where(Participant.update_id == update.id).order_by(Participant.node)).all()
    states = {p.state for p in parts}
    if states == {"gone"}:
        why = f"no node is left of {', '.join(p.node for p in parts)}, so nothing serves {update.to_version}"
        return _fail(session, update, why, now, Unavailable.code)
    if update.state == "preparing" and "waiting" not in states:
        _promote(session, update, now)
    if update.state == "promoting" and states <= {"answering", "gone"}:
        gone = ", ".join(p.node for p in parts if p.state == "gone")
        _move(session, update, "done", now, detail=f"{update.to_version} answers{gone and f', not on {gone}: away'}")
        bump(session)
        _outcome(session, update, now)


def observe(session: Session, update_id: str, node: str, measured: Measured, now: float, detail: str = "") -> None:
    """Take a node's canary counters and its first error: recorded, shown now and then, and judged at once."""
    update, part = session.get(Update, update_id), session.get(Participant, (update_id, node))
    if update is None or update.canary is None or update.state != "canary" or part is None:
        return
    if part.state == "gone":  # it was away, or restarted, and continues
        part.state = "ready"
    part.measured = {**measured.model_dump(), "at": now}
    every_s = max(OBSERVED_EVERY_S, update.canary["for_s"] / OBSERVED_TIMES)
    if now - update.started_at >= every_s + (update.canary.get("told") or 0.0):
        update.canary = {**update.canary, "told": now - update.started_at}
        _event(session, update, "observed", now, node=node, detail=str(_measured(session, update)))
    _judge(session, update, now, at_end=False, hint=detail and f". On node {node}: {detail}")


def _measured(session: Session, update: Update) -> Measured:
    parts = session.scalars(select(Participant).where(Participant.update_id == update.id))
    return Measured.together(Measured(**{k: v for k, v in p.measured.items() if k != "at"}) for p in parts if p.measured)


def _silent(session: Session, update: Update) -> list[str]:
    """Nodes with slots that have not yet reported their canaries' counters at its end."""
    parts = session.scalars(select(Participant).where(Participant.update_id == update.id, Participant.state == "ready"))
    placement = deployments.find(session, update.deployment).placement
    serving = [p for p in parts if not placement or p.node in placement["nodes"]]
    return [p.node for p in serving if (p.measured or {}).get("at", 0.0) < update.deadline_at + COUNTED_S]


def _share(session: Session, update: Update, now: float) -> None:
    """Start the canary's time once all nodes have begun."""
    states = set(session.scalars(select(Participant.state).where(Participant.update_id == update.id)))
    if update.canary and update.canary["since"] is None and "waiting" not in states:
        update.canary = {**update.canary, "since": now}
        update.deadline_at = now + update.canary["for_s"]
        deployment = deployments.find(session, update.deployment)
        what = "has" if canaries.is_keyed(deployment) else "serves"
        _event(session, update, "sharing", now, detail=f"{update.to_version} {what} {canaries.tries(deployment, update.canary)}")


def _judge(session: Session, update: Update, now: float, *, at_end: bool, hint: str = "") -> None:
    """Roll back if a condition holds; otherwise, at the end, continue as any update does."""
    assert update.canary is not None
    session.flush()
    measured = _measured(session, update)
    if why := verdict(update.canary["rollback_if"], update.canary["min_events"], measured, at_end=at_end):
        return _roll_back(session, update, why + hint, now)
    if at_end:
        _pass(session, update, f"the canary passed: {measured}", now)
    return None


def promote_canary(session: Session, caller: Caller, name: str) -> Update:
    """End a canary under way as passed, whatever it has counted so far; the update continues as any does.

    Conflict if there is none, or not all nodes have begun it.
    """
    deployments.find(session, name)
    update = session.scalar(select(Update).where(Update.deployment == name, Update.state == "canary"))
    if update is None or update.canary is None:
        raise Conflict(f"deployment {name!r} has no canary under way that could be promoted; see: udo inspect {name}")
    if update.canary["since"] is None:
        raise Conflict(f"the canary of {name!r} has not begun on all nodes yet (update {update.id}): promote it then, or roll it back")
    why = f"{caller.who} promoted the canary before its time: {_measured(session, update)}"
    audit.record(
        session, caller, "promote", deployment=name, before=update.from_digest, after=update.to_digest, detail=f"update {update.id}"
    )
    _pass(session, update, why, caller.now)
    return update


def _pass(session: Session, update: Update, why: str, now: float) -> None:
    for part in session.scalars(select(Participant).where(Participant.update_id == update.id, Participant.state != "gone")):
        part.state = "waiting"
    update.deadline_at = now + update.timeout_s
    _move(session, update, "preparing", now, detail=why)
    bump(session)
    advance(session, update, now)


def _roll_back(session: Session, update: Update, why: str, now: float) -> None:
    keyed = canaries.is_keyed(deployments.find(session, update.deployment))
    serves = "continues to serve" if keyed else "serves all new lanes as soon as each node hears of it"
    _move(session, update, "rolled_back", now, f"{why}. {update.from_version} {serves}")
    bump(session)
    _outcome(session, update, now)


def drop(session: Session, node: str, why: str, now: float) -> None:
    """Mark the node as gone: updates continue without it."""
    parts = session.scalars(select(Participant).where(Participant.node == node, Participant.state.in_(("waiting", "ready"))))
    for part in parts:
        update = session.get(Update, part.update_id)
        if update is None or update.state not in UPDATE_OPEN:
            continue
        part.state = "gone"
        _event(session, update, "gone", now, node=node, detail=f"node {node} {why}; the update continues without it")
        advance(session, update, now)


def overdue(session: Session, live: list[str], now: float) -> bool:
    """Whether an update is past its deadline or waits for a node that is not live."""
    late = session.scalar(select(Update.id).where(Update.state.in_(UPDATE_OPEN), Update.deadline_at <= now).limit(1))
    return late is not None or bool(_awaited(session) - set(live))


def expire(session: Session, now: float) -> None:
    """End the updates whose time is over: canaries that have begun are judged, the others fail."""
    for update in session.scalars(select(Update).where(Update.state.in_(UPDATE_OPEN), Update.deadline_at <= now)):
        if update.state == "canary" and update.canary and update.canary["since"] is not None:
            silent = _silent(session, update)
            if silent and now >= update.deadline_at + update.timeout_s:
                _roll_back(session, update, f"no canary metrics from {', '.join(silent)} within {update.timeout_s:g} s", now)
            elif not silent:
                _judge(session, update, now, at_end=True)
            continue
        step = "answering" if update.state == "promoting" else "ready"
        done = (step, "answering", "gone")
        missing = session.scalars(select(Participant.node).where(Participant.update_id == update.id, Participant.state.not_in(done)))
        why = f"no report {step!r} from {', '.join(missing)} within {update.timeout_s:g} s; see: udo logs {update.deployment}"
        _fail(session, update, why, now, WaitTimeout.code)


def drop_dead(session: Session, live: list[str], now: float) -> None:
    """Stop waiting for participants that are no longer heard from."""
    for node in _awaited(session) - set(live):
        drop(session, node, "was not heard of for too long", now)


def prune(session: Session) -> None:
    """Forget all but the last UPDATES_KEPT updates of each deployment, with their events."""
    age = func.row_number().over(partition_by=Update.deployment, order_by=Update.started_at.desc())
    aged = select(Update.id, Update.state, age.label("age")).subquery()
    old = select(aged.c.id).where(aged.c.age > UPDATES_KEPT, aged.c.state.not_in(UPDATE_OPEN))
    session.execute(delete(Update).where(Update.id.in_(old)), execution_options={"synchronize_session": False})


def _awaited(session: Session) -> set[str]:
    query = select(Participant.node).join(Update, Update.id == Participant.update_id)
    return set(session.scalars(query.where(Update.state.in_(UPDATE_OPEN), Participant.state.in_(("waiting", "ready")))))


def _promote(session: Session, update: Update, now: float) -> None:
    """From this commit on the new version is wanted; a node that fails now converges to that version by itself."""
    deployment = deployments.find(session, update.deployment)
    new = catalogue.find(session, deployment.version.name, update.to_digest)
    if new.id != deployment.version_id:
        if update.action == "rollback":
            at = [p["digest"] for p in deployment.previous].index(new.digest)
            deployment.previous = deployment.previous[at + 1 :]
        else:
            old = {"version": deployment.version.version, "digest": deployment.version.digest}
            deployment.previous = [old, *(p for p in deployment.previous if p["digest"] not in (old["digest"], new.digest))][:PREVIOUS_KEPT]
        deployment.version = new
    for kind, values in (update.config or {}).items():
        setattr(deployment, kind, values)
    deployment.generation = bump(session)
    update.deadline_at = now + update.timeout_s
    _move(session, update, "promoting", now)


def _fail(session: Session, update: Update, why: str, now: float, error_code: str) -> None:
    before, after = f"{update.from_version} keeps serving", f"{update.to_version} stays wanted, the nodes converge to it"
    _move(session, update, "failed", now, f"{why}. {after if update.state == 'promoting' else before}", error_code)
    bump(session)
    _outcome(session, update, now)


def _outcome(session: Session, update: Update, now: float) -> None:
    update.config = None  # may hold secrets
    caller = Caller(update.who, update.address, now)
    action = f"{update.action}.{update.state}"
    audit.record(
        session, caller, action, deployment=update.deployment, before=update.from_digest, after=update.to_digest, detail=update.detail
    )


def _move(session: Session, update: Update, to: str, now: float, detail: str = "", error_code: str = "") -> None:
    life = Lifecycle(UPDATE, update.state, f"update {update.id} of {update.deployment!r}")
    life.move(to)
    update.state, update.detail = life.state, detail or update.detail
    _event(session, update, to, now, detail=detail, error_code=error_code)


def _event(session: Session, update: Update, phase: str, now: float, *, node: str = "", detail: str = "", error_code: str = "") -> None:
    at_ms = round((now - update.started_at) * 1000, 3)
    session.add(Event(update_id=update.id, phase=phase, node=node, detail=detail, at_ms=at_ms, error_code=error_code))
