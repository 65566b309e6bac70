"""Nodes: those known, their wanted state (read by long poll), and their reports."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import bindparam, delete, select
from sqlalchemy.orm import Session

from registry.domain import applications, group_maps, updates
from registry.domain.audit import iso
from registry.domain.presence import Presence, is_drained
from registry.store.models import Deployment, Node, NodeState, Setting, Update, Version
from registry.store.store import bump
from udo_protocol.errors import Conflict
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.registry.canary import Measured
from udo_protocol.registry.wanted import NodeReport, UpdatePhase, UpdateStep, WantedDeployment, WantedState


class Heartbeat(BaseModel):
    """Body of POST /api/v1/nodes/<node>/heartbeat."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    address: str = Field(default="", max_length=500)
    driver: str = Field(default="process", max_length=50)
    capabilities: dict[str, Any] = {}
    metrics_address: str = Field(default="", max_length=500)
    listen: str = Field(default="", max_length=300)
    incarnation: str = Field(default="", max_length=64)


_NODES = Node.__table__.c
# Asked before each answer to a node, so it goes past the mapper.
_KNOWN = select(_NODES.address, _NODES.incarnation, _NODES.last_seen).where(_NODES.name == bindparam("name"))


def require_same(session: Session, name: str, incarnation: str, live_since: float, address: str = "") -> None:
    """Conflict if another node of this name is live, heard from at `live_since` or later: a node is a name and an incarnation, that of
    its state server. Nodes of a release that sends no incarnation are trusted."""
    known = session.connection().execute(_KNOWN, {"name": name}).one_or_none()
    if known is None or not known.incarnation or not incarnation or known.incarnation == incarnation or known.last_seen < live_since:
        return
    other = f" at {address}" if address else ""
    raise Conflict(
        f"a node named {name!r} is there already, at {known.address or 'an address that it has not told'}; the one that asks now{other} is "
        "another one: give it another name (--node). If it is the same machine, whose state was lost, it takes that one's place as soon as "
        "that one counts as away"
    )


def heartbeat(session: Session, name: str, beat: Heartbeat, live_since: float, now: float) -> bool:
    """Record a node with these properties. The other nodes learn if its address for them has changed. Conflict: `require_same`.

    Returns whether the node is new here: then nothing is known of its deployments, whatever it has reported before.
    """
    require_same(session, name, beat.incarnation, live_since, beat.address)
    before = session.get(Node, name)
    if (before.listen if before else "") != beat.listen:
        bump(session)
    another = before is not None and bool(before.incarnation and beat.incarnation) and before.incarnation != beat.incarnation
    if another:
        # The former node's reports do not hold for this one.
        session.execute(delete(NodeState).where(NodeState.node == name))
    session.merge(Node(name=name, last_seen=now, **beat.model_dump()))
    return another or before is None


def leave(session: Session, name: str, now: float) -> None:
    """Remove a node that has stopped regularly: no update waits for it. The other nodes learn if they had its address."""
    if node := session.get(Node, name):
        if node.listen:
            bump(session)
        session.delete(node)
    for state in session.scalars(select(NodeState).where(NodeState.node == name)):
        session.delete(state)
    updates.drop(session, name, "left", now)


def forget(session: Session, before: float) -> None:
    """Drop nodes not heard from since `before`, and their reports. The other nodes learn if they had the address of one."""
    gone = session.execute(select(Node.name, Node.listen).where(Node.last_seen < before)).all()
    if any(listen for _, listen in gone):
        bump(session)
    for name, _ in gone:
        for table, column in ((Node, Node.name), (NodeState, NodeState.node)):
            session.execute(delete(table).where(column == name))


def everything(session: Session, there: Presence) -> list[dict[str, Any]]:
    """All nodes, by name."""
    return [
        {
            "node": n.name,
            "address": n.address,
            "driver": n.driver,
            "capabilities": n.capabilities,
            "metrics_address": n.metrics_address,
            "listen": n.listen,
            "last_seen": iso(n.last_seen),
            "live": n.name in there.live,
            "drained": is_drained(session, n.name),
        }
        for n in session.scalars(select(Node).order_by(Node.name))
    ]


_PHASES = {"canary": UpdatePhase.CANARY, "preparing": UpdatePhase.PREPARE, "promoting": UpdatePhase.PROMOTE}


def wanted(session: Session) -> WantedState:
    """The wanted state of every node; secrets included, so only for nodes."""
    row, together = session.get(Setting, "generation"), applications.memberships(session)
    running = session.execute(
        select(Update, Version).join(Version, Version.digest == Update.to_digest).where(Update.state.in_(UPDATE_OPEN))
    )
    steps = {u.deployment: _step(u, v) for u, v in running}
    return WantedState(
        row.value if row else 0,
        group_maps.moved(session),
        {n.name: n.listen for n in session.scalars(select(Node).where(Node.listen != ""))},
        tuple(
            WantedDeployment(
                d.name,
                d.version.name,
                d.version.version,
                d.version.digest,
                d.version.manifest,
                tuple(d.version.layers),
                slots=d.slots,
                placement={k: v for k, v in d.placement.items() if k != "moving"} if d.placement else None,
                made=d.made,
                generation=d.generation,
                config=_config(d, together.get(d.name)),
                update=steps.get(d.name),
            )
            for d in session.scalars(select(Deployment).order_by(Deployment.name))
        ),
    )


def _step(u: Update, to: Version) -> UpdateStep:
    percent = u.canary["percent"] if u.canary and u.state == "canary" else 0
    return UpdateStep(u.id, u.to_version, u.to_digest, _PHASES[u.state], percent, u.config, to.manifest, tuple(to.layers))


def _config(d: Deployment, application: dict[str, Any] | None) -> dict[str, Any]:
    """The configuration that nodes receive; the last two parts only if they are set."""
    found = {"env": d.env, "secrets": d.secrets, "files": d.files, "limits": d.limits, "policy": d.policy}
    found |= {"elasticity": d.elasticity} if d.elasticity else {}
    return found | ({"application": application} if application is not None else {})


def report(session: Session, node: str, r: NodeReport, now: float) -> None:
    """Record a node's report; as a step of an update it may start the next phase."""
    if r.update_id:
        # Nodes may name the phase of the plan they are in; the step is then in `state`.
        step = r.phase if r.phase not in (None, "prepare", "promote") else r.state
        if step == "observed":
            return updates.observe(session, r.update_id, node, r.measured or Measured(), now, r.detail)
        updates.step(session, r.update_id, node, step, r.detail, now, r.error_code or "")
        if step != "answering":
            return
    if session.get(Deployment, r.deployment) is None:
        return  # undeployed meanwhile: nothing to record
    session.merge(
        NodeState(
            node=node,
            deployment=r.deployment,
            state=r.state,
            version=r.version,
            digest=r.digest,
            detail=r.detail,
            error_code=r.error_code or "",
            at=now,
        )
    )
