"""Moves of key groups of a deployment over nodes: the registry gives each move a version of the map, and says when it is in force.

The node that has the groups executes a move (node_manager/deployments/between.py) and asks for its steps, each of which may be asked for
again. A deployment has one move at a time, begun from the version of the map in force, so that no two moves make the same version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain import audit, deployments
from registry.domain.audit import Caller
from registry.store.models import Deployment, Update
from registry.store.store import bump
from udo_protocol import ranges
from udo_protocol.errors import Conflict, UsageError
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.limits import MOST_KEY_GROUPS, SlotLimits
from udo_protocol.state.placement import PendingMove, Placement


class MoveBody(BaseModel):
    """Body of POST .../moves. `version`: to begin, that of the map in force; later that of the move."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: Literal["begin", "in force", "done"]
    node: str = Field(min_length=1, max_length=100)
    version: int = Field(ge=1)
    groups: list[int] = Field(default=[], max_length=MOST_KEY_GROUPS)
    to: int = Field(default=0, ge=0)  # place of the slot


def placed(deployment: Deployment) -> Placement:
    """The placement. UsageError unless it is a keyed deployment over nodes."""
    if not deployment.placement or not deployment.version.manifest.get("key"):
        raise UsageError(f"deployment {deployment.name!r}: expected one that keeps state, over nodes; its slots are on each node by itself")
    return Placement.parse(deployment.placement, keyed=True)


def key_groups(deployment: Deployment) -> int:
    """The number of key groups of a keyed deployment."""
    return SlotLimits.of(deployment.limits).key_groups


def move(session: Session, caller: Caller, name: str, wish: MoveBody) -> dict[str, Any]:
    """Carry out a step of a move; returns the placement after it. Conflict if the map has changed, or another move is under way."""
    deployment = deployments.find(session, name)
    now = placed(deployment)
    if wish.step == "begin":
        after = _begun(session, deployment, now, wish)
    elif wish.step == "in force":
        after = _in_force(now, deployment, wish)
        if after != now:
            assert now.moving is not None
            said = f"groups {ranges.shown(now.moving.groups)} to {now.name(now.moving.to)}, version {wish.version}"
            audit.record(session, caller, "move", deployment=name, detail=said)
            bump(session)
    elif now.moving is not None and now.moving.version == wish.version:
        if now.version < wish.version:
            raise Conflict(f"the move {wish.version} of deployment {name!r} is not in force yet: it cannot be done")
        after = replace(now, moving=None)
    else:
        after = now
    if after != now:
        deployment.placement = after.document()
    return after.document()


def require_still(deployment: Deployment) -> None:
    """Conflict while key groups of the deployment move between nodes."""
    if deployment.placement:
        deployments.placement_of(deployment)


def _begun(session: Session, deployment: Deployment, now: Placement, wish: MoveBody) -> Placement:
    name, pending, groups = deployment.name, now.moving, tuple(sorted(set(wish.groups)))
    now.require_no_replicas(name, "its key groups cannot be moved")
    if pending is not None:
        if (pending.node, pending.groups, pending.to) == (wish.node, groups, wish.to):
            return now
        require_still(deployment)
    if session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"the version of deployment {name!r} is being changed: move key groups when that is done")
    if wish.version != now.version:
        raise Conflict(f"the group map of deployment {name!r} is of version {now.version} by now, expected {wish.version}")
    known = now.map(key_groups(deployment))
    if not groups or groups[0] < 0 or groups[-1] >= len(known.groups) or wish.to >= len(now.nodes):
        raise UsageError(f"deployment {name!r} has {len(known.groups)} key groups and {len(now.nodes)} slots: expected some of these")
    sources = {known.groups[g] for g in groups}
    source = sources.pop()
    if sources or now.nodes[source] != wish.node or source == wish.to:
        raise UsageError(f"expected key groups of one slot of node {wish.node}, to another slot; got {ranges.shown(groups)}")
    return replace(now, moving=PendingMove(now.version + 1, wish.node, source, wish.to, groups))


def _in_force(now: Placement, deployment: Deployment, wish: MoveBody) -> Placement:
    pending = now.moving
    if now.version >= wish.version:
        return now
    if pending is None or pending.version != wish.version:
        raise Conflict(f"deployment {deployment.name!r} has no move {wish.version} under way")
    return now.changed(now.map(key_groups(deployment)).moved(pending.groups, pending.source, pending.to))
