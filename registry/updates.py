"""The live update: prepare on every live node, then promote on every one. All of its state is in the database.

Nothing here waits: each report of a node moves the update on, in one commit, and the hub wakes the nodes and watchers.
Before `promoting` the old version is wanted and serves; the commit that enters `promoting` makes the new one wanted.
"""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from registry import audit, catalogue, deployments
from registry.audit import Caller, iso
from registry.models import Deployment, Event, Participant, Update, Version
from registry.store import bump
from udo_protocol.errors import Conflict, NotFound, SchemaError, UsageError, WaitTimeout
from udo_protocol.lifecycle import UPDATE, Lifecycle
from udo_protocol.manifest import Manifest, call_misfits, parse, update_refusals

OPEN = ("preparing", "promoting")
# What nodes report of an update; only ready, answering and failed move it on, the others are shown to its watchers.
NODE_STEPS = ("pulling", "starting", "ready", "promoting", "answering", "failed")
PREVIOUS_KEPT = 20
# Updates of a deployment whose events stay readable; the audit trail keeps the rest of the story.
UPDATES_KEPT = 100


def find(session: Session, update_id: str) -> Update:
    """The update of that id."""
    if update := session.get(Update, update_id):
        return update
    raise NotFound(f"no update {update_id!r} (the last {UPDATES_KEPT} of each deployment are kept; older ones stand in the audit trail)")


def describe(session: Session, u: Update) -> dict[str, Any]:
    """An update as the API shows it."""
    names = ("id", "deployment", "action", "who", "from_version", "from_digest", "to_version", "to_digest", "state", "detail")
    nodes = session.scalars(select(Participant).where(Participant.update_id == u.id).order_by(Participant.node))
    return {
        **{n: getattr(u, n) for n in names},
        "started_at": iso(u.started_at),
        "nodes": [{"node": p.node, "state": p.state} for p in nodes],
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
    """The version to go to, and a remark. SchemaError when a running query could not go on with it.

    A rollback is not refused for its schemas: calls built before the update fit the former version, and to leave a bad
    version must stay possible; calls built since then may not fit, which the remark says. Whether the former version can have
    its state back, the nodes find out.
    """
    operator = deployment.version.name
    if action == "update":
        new = catalogue.find(session, operator, ref or "latest")
        if problems := update_refusals(*_manifests(deployment.version, new)):
            raise SchemaError(
                f"update of {deployment.name!r} from {operator}@{deployment.version.version} to @{new.version} refused, running queries "
                f"could not go on: {'; '.join(problems)}. Keep these columns, or deploy the new version under another name"
            )
        return new, ""
    former = [p for p in deployment.previous if ref in (None, p["version"], p["digest"])]
    if not former:
        known = ", ".join(p["version"] for p in deployment.previous) or "none"
        wished = f"former version {ref!r}" if ref else "former version"
        raise NotFound(f"deployment {deployment.name!r} has no {wished} to go back to; former ones: {known}")
    new = catalogue.find(session, operator, former[0]["digest"])
    problems = call_misfits(*_manifests(deployment.version, new))
    return new, f"calls built for @{deployment.version.version} will not fit: {'; '.join(problems)}" if problems else ""


def start(session: Session, caller: Caller, name: str, action: str, ref: str | None, live: list[str], timeout_s: float) -> Update:
    """Begin an update; it is done at once when no node lives. Conflict while another one runs."""
    deployment = deployments.find(session, name)
    if running := session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(OPEN))):
        raise Conflict(f"deployment {name!r} is already being updated to @{running.to_version} (update {running.id}); one at a time")
    new, remark = target(session, deployment, action, ref)
    old = deployment.version
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
        deadline_at=caller.now + timeout_s,
        timeout_s=timeout_s,
    )
    session.add(update)
    session.flush()
    nodes = live if new.digest != old.digest else []
    session.add_all(Participant(update_id=update.id, node=n, state="waiting") for n in nodes)
    route = f"{old.name}@{old.version} -> @{new.version} on {len(nodes)} node(s)"
    audit.record(session, caller, action, deployment=name, before=old.digest, after=new.digest, detail=f"{route}, update {update.id}")
    _move(session, update, "preparing", caller.now, detail=f"{route}. {remark}".removesuffix(". "))
    bump(session)
    advance(session, update, caller.now)
    return update


def step(session: Session, update_id: str, node: str, phase: str, detail: str, now: float, error_code: str = "") -> None:
    """A node reports a step, with a code if it failed. Late ones, and those of nodes that are not waited for, change nothing."""
    if phase not in NODE_STEPS:
        raise UsageError(f"unknown step {phase!r} of an update; expected one of {', '.join(NODE_STEPS)}")
    update = session.get(Update, update_id)
    if update is None or update.state not in OPEN:
        return
    _event(session, update, phase if phase != "failed" else "node_failed", now, node=node, detail=detail, error_code=error_code)
    part = session.get(Participant, (update_id, node))
    if part is None:
        return
    if phase == "failed":
        part.state = "failed"
        return _fail(session, update, f"node {node}: {detail}", now, error_code)
    if phase in ("ready", "answering"):
        part.state = phase
        advance(session, update, now)
    return None


def advance(session: Session, update: Update, now: float) -> None:
    """Go as far as the participants' states allow."""
    session.flush()
    states = set(session.scalars(select(Participant.state).where(Participant.update_id == update.id)))
    if update.state == "preparing" and "waiting" not in states:
        _promote(session, update, now)
    if update.state == "promoting" and states <= {"answering", "gone"}:
        _move(session, update, "done", now, detail=f"{update.to_version} answers")
        bump(session)
        _outcome(session, update, now)


def drop(session: Session, node: str, why: str, now: float) -> None:
    """The node is gone: updates go on without it."""
    parts = session.scalars(select(Participant).where(Participant.node == node, Participant.state.in_(("waiting", "ready"))))
    for part in parts:
        update = session.get(Update, part.update_id)
        if update is None or update.state not in OPEN:
            continue
        part.state = "gone"
        _event(session, update, "gone", now, node=node, detail=f"node {node} {why}; the update goes on without it")
        advance(session, update, now)


def overdue(session: Session, live: list[str], now: float) -> bool:
    """Whether an update is past its deadline or waits for a node that is not live."""
    late = session.scalar(select(Update.id).where(Update.state.in_(OPEN), Update.deadline_at <= now).limit(1))
    return late is not None or bool(_awaited(session) - set(live))


def expire(session: Session, now: float) -> None:
    """Fail the updates whose time is over."""
    for update in session.scalars(select(Update).where(Update.state.in_(OPEN), Update.deadline_at <= now)):
        step = "ready" if update.state == "preparing" else "answering"
        done = (step, "answering", "gone")
        missing = session.scalars(select(Participant.node).where(Participant.update_id == update.id, Participant.state.not_in(done)))
        why = f"no report {step!r} from {', '.join(missing)} within {update.timeout_s:g} s; see: udo logs {update.deployment}"
        _fail(session, update, why, now, WaitTimeout.code)


def drop_dead(session: Session, live: list[str], now: float) -> None:
    """Stop waiting for participants that are no longer heard of."""
    for node in _awaited(session) - set(live):
        drop(session, node, "was not heard of for too long", now)


def prune(session: Session) -> None:
    """Forget all but the last UPDATES_KEPT updates of each deployment, with their events."""
    age = func.row_number().over(partition_by=Update.deployment, order_by=Update.started_at.desc())
    aged = select(Update.id, Update.state, age.label("age")).subquery()
    old = select(aged.c.id).where(aged.c.age > UPDATES_KEPT, aged.c.state.not_in(OPEN))
    session.execute(delete(Update).where(Update.id.in_(old)), execution_options={"synchronize_session": False})


def _awaited(session: Session) -> set[str]:
    query = select(Participant.node).join(Update, Update.id == Participant.update_id)
    return set(session.scalars(query.where(Update.state.in_(OPEN), Participant.state.in_(("waiting", "ready")))))


def _promote(session: Session, update: Update, now: float) -> None:
    """From here on the new version is wanted; a node that fails now converges to it by itself."""
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
    deployment.generation = bump(session)
    update.deadline_at = now + update.timeout_s
    _move(session, update, "promoting", now)


def _fail(session: Session, update: Update, why: str, now: float, error_code: str) -> None:
    before, after = f"{update.from_version} keeps serving", f"{update.to_version} stays wanted, the nodes converge to it"
    _move(session, update, "failed", now, f"{why}. {before if update.state == 'preparing' else after}", error_code)
    bump(session)
    _outcome(session, update, now)


def _outcome(session: Session, update: Update, now: float) -> None:
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
