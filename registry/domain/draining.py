"""Draining a node: it gets no more slots of deployments over nodes, and its present ones go to other nodes.

Slots that have replicas, and replicas, move by themselves (replicas.next_placement), as soon as other nodes hold them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain import audit, deployments, presence, replicas, spreading
from registry.domain.audit import Caller
from registry.domain.presence import Presence
from registry.domain.replicas import Nodes
from registry.store.models import Deployment, Update
from registry.store.store import bump
from udo_protocol.errors import Conflict
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.state.placement import Placement


class DrainBody(BaseModel):
    """Body of POST .../drain. `keyed`: deployments whose key groups have been moved off the node, so that its slots may go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keyed: list[str] = Field(default=[], max_length=10_000)
    undo: bool = False


def drain(session: Session, caller: Caller, node: str, wish: DrainBody, there: Presence) -> list[dict[str, Any]]:
    """Drain the node. Returns the deployments that still have slots there, the reason, and whether they `wait` for something automatic.

    Repeating the call continues the drain.
    """
    if presence.is_drained(session, node) == wish.undo:
        audit.record(session, caller, "undrain" if wish.undo else "drain", detail=f"node {node}")
        presence.drain(session, node, drained=not wish.undo)
    left: list[dict[str, Any]] = []
    if wish.undo:
        return left
    nodes = presence.reachable(session, there)
    seen = Nodes(presence.disks(session, there.live), nodes, presence.drained(session))
    for deployment in session.scalars(select(Deployment).order_by(Deployment.name)):
        known = deployment.placement or {}
        if copies := known.get("replication"):
            why, waits = replicas.remains(Placement.parse(known, keyed=True), node, seen) if node in copies["disks"] else ("", False)
            if why:
                left.append({"deployment": deployment.name, "keyed": False, "waits": waits, "why": why})
            continue
        if node not in known.get("nodes", ()):
            continue
        keyed = bool(deployment.version.manifest.get("key"))
        try:
            if keyed and deployment.name not in wish.keyed:
                raise Conflict("its key groups are to be moved first")
            _without(session, deployment, node, nodes)
        except Conflict as e:
            left.append({"deployment": deployment.name, "keyed": keyed, "waits": False, "why": str(e)})
    return left


def _without(session: Session, deployment: Deployment, node: str, nodes: list[str]) -> None:
    if session.scalar(select(Update).where(Update.deployment == deployment.name, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"deployment {deployment.name!r} is being updated: drain the node when that has ended")
    now, key_groups = deployments.placement_of(deployment)
    after = spreading.drained(now, node, nodes, key_groups)
    deployment.placement, deployment.slots, deployment.generation = after.document(), len(after.nodes), bump(session)
