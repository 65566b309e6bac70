"""Steps of an application's deployment without state whose slots are spread over nodes: the registry carries them out itself, by another
placement, which the nodes then bring about. A slot that goes answers the lanes that it has (node_manager/deployments/scaling.py).

A node's last slot stays: without one the node serves nothing of the deployment, and would end lanes that are open there.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from elasticity.scaling.model import Plan
from registry.domain import audit, deployments, presence
from registry.domain.audit import Caller
from registry.domain.presence import Presence
from registry.store.models import Deployment, Update
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.state.placement import Placement


def is_spread(session: Session, name: str) -> bool:
    """Whether the deployment's slots are spread over nodes."""
    found = session.get(Deployment, name)
    return found is not None and found.placement is not None


def carry_out(session: Session, caller: Caller, node: str, before: int, plan: Plan, there: Presence) -> int:
    """A granted step, proposed by that node when it had `before` slots; its slots afterwards. Conflict if it cannot be done by now."""
    deployment = session.get(Deployment, plan.operator)
    if deployment is None:
        raise NotFound(f"no deployment {plan.operator!r}")
    if deployment.version.manifest.get("key"):
        raise Conflict(
            f"deployment {plan.operator!r} keeps state: its slots over nodes stay where they are (udo rebalance moves key groups)"
        )
    if session.scalar(select(Update).where(Update.deployment == plan.operator, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"deployment {plan.operator!r} is being updated: its slots stay until that has ended")
    now, _ = deployments.placement_of(deployment)
    if (count := now.nodes.count(node)) != before:
        raise Conflict(f"deployment {plan.operator!r} has {count} slots on node {node} by now: the step was for {before}")
    after = stepped(now, node, plan, presence.reachable(session, there))
    deployment.placement, deployment.slots, deployment.generation = after.document(), len(after.nodes), bump(session)
    audit.record(session, caller, "scale", deployment=plan.operator, detail=f"{plan.kind} on node {node}: {', '.join(after.nodes)}")
    return after.nodes.count(node)


def stepped(now: Placement, node: str, plan: Plan, reachable: list[str]) -> Placement:
    """The placement after the step. Conflict if its target cannot have a slot, or the node's last one would go."""
    nodes, target = list(now.nodes), plan.target or node
    if plan.kind != "scale_in" and target not in reachable:
        raise Conflict(f"node {target} is away, drained, or does not listen for other hosts: it cannot have a slot")
    if plan.kind in ("scale_in", "migrate") and nodes.count(node) < 2:
        raise Conflict(f"it is the last slot of node {node}, where lanes are open")
    if plan.kind == "scale_out":
        if len(nodes) >= MOST_SLOTS:
            raise Conflict(f"there are {len(nodes)} slots, as many as a deployment may have")
        nodes.append(target)
    else:
        last = len(nodes) - 1 - nodes[::-1].index(node)
        if plan.kind == "migrate":
            nodes[last] = target
        else:
            del nodes[last]
    return replace(now, version=now.version + 1, nodes=tuple(nodes))
