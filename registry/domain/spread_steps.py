"""Steps of an application's deployment whose slots are spread over nodes: the registry carries them out itself, by another placement, which
the nodes then bring about. A slot that goes still answers its present lanes (node_manager/deployments/scaling.py).

Without state that is all, and a node's last slot stays: without a slot the node would serve nothing of the deployment, and end lanes that
are open there. With state key groups are moved before a slot goes (keyed_steps.py), so the step is under way for a while.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from elasticity.scaling.model import Plan
from registry.domain import audit, deployments, keyed_steps, presence
from registry.domain.audit import Caller
from registry.domain.keyed_steps import By
from registry.domain.presence import Presence
from registry.store.models import Deployment, Update
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound
from udo_protocol.lifecycle import UPDATE_OPEN
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.state.placement import Placement

# The steps that the registry carries out, without state and with it.
_KINDS = (("scale_out", "migrate", "scale_in"), ("scale_out", "migrate", "scale_in", "balance"))


def is_spread(session: Session, name: str) -> bool:
    """Whether the deployment's slots are spread over nodes."""
    found = session.get(Deployment, name)
    return found is not None and found.placement is not None


def carry_out(session: Session, caller: Caller, node: str, before: int, plan: Plan, by: By, there: Presence) -> int | None:
    """Carry out a granted step, proposed by that node when it had `before` slots. Returns its slots afterwards, None if still under way.

    Conflict if the step is no longer possible."""
    deployment = session.get(Deployment, plan.operator)
    if deployment is None:
        raise NotFound(f"no deployment {plan.operator!r}")
    if session.scalar(select(Update).where(Update.deployment == plan.operator, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"deployment {plan.operator!r} is being updated: its slots stay until that has ended")
    now, key_groups = deployments.placement_of(deployment)
    if plan.kind not in _KINDS[now.keyed]:
        raise Conflict(f"expected a step of {', '.join(_KINDS[now.keyed])} for deployment {plan.operator!r}, got {plan.kind}")
    if now.replication is not None:
        raise Conflict(f"deployment {plan.operator!r} has replicas, or had some: its slots move by udo node drain, not by steps")
    if (count := now.nodes.count(node)) != before or not count:
        raise Conflict(f"deployment {plan.operator!r} has {count} slots on node {node} by now: the step was for {before}")
    after = keyed_steps.begun(now, node, plan, by, key_groups) if now.keyed else stepped(now, node, plan)
    target = after.nodes[after.step.to] if after.step and after.step.to is not None else plan.target or node
    if plan.kind != "scale_in" and target not in presence.reachable(session, there):
        what = "take key groups" if plan.kind == "balance" else "have a slot"
        raise Conflict(f"node {target} is away, drained, or does not listen for other hosts: it cannot {what}")
    _put(session, caller, deployment, after, f"{plan.kind} on node {node}")
    return None if after.step else after.nodes.count(node)


def under_way(session: Session, name: str = "") -> list[tuple[Deployment, Placement]]:
    """Placements with a step under way; only of deployment `name` if given."""
    chosen = select(Deployment).order_by(Deployment.name)
    found = session.scalars(chosen.where(Deployment.name == name) if name else chosen)
    return [(d, Placement.parse(d.placement, keyed=True)) for d in found if d.placement and d.placement.get("step")]


def go_on(session: Session, caller: Caller, deployment: Deployment, part: str) -> int:
    """Carry out the step's part 'emptied', 'done' or 'given up'; returns its node's slots afterwards. Not while key groups move."""
    now = Placement.parse(deployment.placement or {}, keyed=True)
    assert now.step is not None
    after = {"emptied": keyed_steps.emptied, "done": keyed_steps.ended, "given up": keyed_steps.given_up}[part](now)
    _put(session, caller, deployment, after, f"{now.step.kind} on node {now.step.node} {part}")
    return after.nodes.count(now.step.node)


def _put(session: Session, caller: Caller, deployment: Deployment, after: Placement, said: str) -> None:
    deployment.placement, deployment.slots, deployment.generation = after.document(), len(after.nodes), bump(session)
    audit.record(session, caller, "scale", deployment=deployment.name, detail=f"{said}: {', '.join(after.nodes)}")


def stepped(now: Placement, node: str, plan: Plan) -> Placement:
    """The placement of a deployment without state after the step. Conflict if the node's last slot would go."""
    nodes, target = list(now.nodes), plan.target or node
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
