"""Carries out the decisions about replicas (replicas.py), from the nodes heard from lately and the reports of the slots' owners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain import audit, group_maps
from registry.domain.audit import Caller
from registry.domain.replicas import Nodes, advanced, next_placement
from registry.store.models import Deployment, Update
from registry.store.store import bump
from udo_protocol.errors import UsageError
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.state.placement import Placement

# The caller of its decisions, in the audit trail.
_REGISTRY = "registry"


class InStepBody(BaseModel):
    """Body of POST .../replicas: the slot's owner waits for this replica, and the replica holds everything ENDed before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str = Field(min_length=1, max_length=100)  # the owner's
    replica: str = Field(min_length=1, max_length=100)
    place: int = Field(ge=0)
    version: int = Field(ge=1)  # the placement by which the owner waits


def in_step(session: Session, deployment: Deployment, wish: InStepBody) -> dict[str, Any]:
    """Count a replica from now on, if it is joining by the placement that the owner follows. Returns the placement afterwards."""
    now = Placement.parse(deployment.placement or {}, keyed=True) if deployment.placement else None
    if now is None or now.replication is None:
        raise UsageError(f"deployment {deployment.name!r} has no replicas")
    copies, place = now.replication, wish.place
    if (
        place < len(now.nodes)
        and now.nodes[place] == wish.node
        and copies.joining[place].get(wish.replica, wish.version + 1) <= wish.version
    ):
        counted, joining = list(copies.counted), list(copies.joining)
        counted[place] = (*counted[place], wish.replica)
        joining[place] = {node: version for node, version in joining[place].items() if node != wish.replica}
        now = advanced(now, replace(copies, counted=tuple(counted), joining=tuple(joining)))
        deployment.placement = now.document()
        bump(session)
    return now.document()


def has_replicas(session: Session) -> bool:
    """Whether some deployment has replicas."""
    return any((placement or {}).get("replication") for placement in session.scalars(select(Deployment.placement)))


def due(session: Session, nodes: Nodes) -> bool:
    """Whether a change is due."""
    return any(_next(session, deployment, now, nodes)[1] for deployment, now in _replicated(session))


def _next(session: Session, deployment: Deployment, now: Placement, nodes: Nodes) -> tuple[Placement, list[str]]:
    """The next placement. Nothing leaves a drained node while an update is open: the node takes part in it."""
    if nodes.drained and session.scalar(select(Update).where(Update.deployment == deployment.name, Update.state.in_(UPDATE_OPEN))):
        nodes = replace(nodes, drained=())
    return next_placement(now, nodes)


def step(session: Session, now_s: float, nodes: Nodes) -> None:
    """Carry out the changes that are due."""
    for deployment, before in list(_replicated(session)):
        after, said = _next(session, deployment, before, nodes)
        if not said:
            continue
        deployment.placement = after.document()
        bump(session)
        audit.record(session, Caller(_REGISTRY, "", now_s), "replicas", deployment=deployment.name, detail="; ".join(said))
        assert after.replication is not None
        for place, (old, new) in enumerate(zip(before.nodes, after.nodes, strict=True)):
            if old != new:
                group_maps.replaced(session, deployment.name, old, after.nodes[place], after.replication.disks[new])


def _replicated(session: Session) -> list[tuple[Deployment, Placement]]:
    found = []
    for deployment in session.scalars(select(Deployment).order_by(Deployment.name)):
        if (deployment.placement or {}).get("replication"):
            found.append((deployment, Placement.parse(deployment.placement or {}, keyed=True)))
    return found
