"""The Operator Manager of an application's deployment on a node (paper 5, section 3.1): it proposes, and acts only within the
deployment's bounds.

The node carries out granted steps at once: the bounds themselves, and balancing, which takes no further replica. Every other step, and
over nodes balancing as well, is declined with the reason `ASKED`: the application's manager is asked for it (application.py). Reversals are
judged by the changes that were observed, not by those that were proposed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elasticity.scaling import balancing, edf, guards, local
from elasticity.scaling.balancing import BalanceMemory, BalanceSettings
from elasticity.scaling.model import GAIN, Kind, OperatorSample, Plan, Sample, ScalingDecision

ASKED = "asked of the application's manager"
LAST = "the last slot of this node, where lanes are open"
# ManagedSettings.spread of deployments whose slots are spread over nodes.
STATELESS, WITH_STATE = 1, 2
ADVICE = "advice only: each node has slots of its own, and its callers do not move with one"


@dataclass(frozen=True)
class ManagedMemory:
    """The calm, and for each operator: the number of replicas last seen, its last change (kind and when), and balancing."""

    calm: guards.Calm = field(default_factory=guards.Calm)
    counts: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, tuple[Kind, float]] = field(default_factory=dict)
    balance: Mapping[str, BalanceMemory] = field(default_factory=dict)


@dataclass(frozen=True)
class ManagedSettings(edf.GuardedSettings, BalanceSettings):
    """least, most: replicas. spread: 0 unless the deployment's slots are spread over nodes, then STATELESS or WITH_STATE.

    If spread, bounds are not enforced by the node, since the registry says how many slots a node has; a new slot may come to a neighbour,
    and a slot may move there. With state that may be the node's last one, a scale-out names the replica that gives the new slot key
    groups, and key groups are balanced by asking.
    """

    least: int = 1
    most: int = 1
    spread: int = 0


def managed(
    sample: Sample, memory: ManagedMemory | None, rng: random.Random, settings: ManagedSettings
) -> tuple[ScalingDecision, ManagedMemory]:
    """The steps and proposals of an Operator Manager."""
    memory, reverse_s = memory or ManagedMemory(), settings.reverse_s
    calm, counts, steps, balances = memory.calm, dict(memory.counts), dict(memory.steps), dict(memory.balance)
    granted, declined = list[Plan](), list[tuple[Plan, str]]()
    for o in sample.operators:
        now, before = len(o.replicas), counts.get(o.name, len(o.replicas))
        counts[o.name] = now
        if now != before:
            calm = replace(calm, since={name: since for name, since in calm.since.items() if name != o.name})
            steps[o.name] = ("scale_out" if now > before else "scale_in", sample.at_s)
        found, mine = balancing.propose(sample, o, balances.get(o.name, BalanceMemory()), settings)
        balances[o.name], last = mine, steps.get(o.name)
        if not settings.spread and (needed := local.bound(sample, o, settings.least, settings.most)) is not None:
            granted.append(needed)
            continue
        wanted, refused, after = edf.guarded(sample, o, rng, calm, settings)
        if not any(p.kind == "scale_in" for p in wanted):  # until a proposed scale-in is granted, the calm stays as it is
            calm = after
        declined += refused
        judged = [(_gain(sample, o, p, settings), _against(p, now, settings) or local.in_vain(p, o, found)) for p in wanted]
        judged = [(p, why or local.against(last, p, sample.at_s, reverse_s)) for p, why in judged]
        if found.plan is not None and not local.settling(last, sample.at_s, settings.balance_s):
            scales_out = any(p.kind == "scale_out" and why is None for p, why in judged)
            if not (scales_out and local.balanced(mine, last, sample.at_s, reverse_s)):
                if settings.spread:
                    declined.append((found.plan, ASKED))
                else:
                    granted.append(found.plan)
                    balances[o.name] = balancing.granted(mine, found.plan, sample.at_s, reverse_s)
                judged = [(p, why or "its key groups are balanced first") for p, why in judged]
        declined += [(p, why or ASKED) for p, why in judged]
    return ScalingDecision(tuple(granted), tuple(declined)), ManagedMemory(calm, counts, steps, balances)


def asked(decision: ScalingDecision) -> tuple[Plan, ...]:
    """The steps to ask the application's manager for."""
    return tuple(p for p, why in decision.declined if why == ASKED)


def _against(step: Plan, now: int, settings: ManagedSettings) -> str | None:
    if settings.spread == STATELESS and step.kind != "scale_out" and now < 2:
        return LAST
    if step.kind == "migrate":
        return None if settings.spread else ADVICE
    return f"it has its least of {settings.least}" if step.kind == "scale_in" and now <= settings.least else None


def _gain(sample: Sample, operator: OperatorSample, step: Plan, settings: ManagedSettings) -> Plan:
    """The step with its gain refined within its kind: how far its figure is beyond the threshold, from 0 to below 1 (ours).

    If each node has slots of its own, a new one comes to this node: no target.
    """
    use, u_max, s_out = [r.use or 0.0 for r in operator.replicas], settings.u_max, settings.s_out
    if step.kind == "scale_out":
        beyond = (max(use) - s_out) / (1 - s_out) if s_out < 1 else 0.0
    elif step.kind == "migrate":
        beyond = (max(n.use for n in sample.nodes) - u_max) / (1 - u_max) if u_max < 1 else 0.0
    else:
        beyond = 1 - sum(use) / max(len(use) - 1, 1) / (settings.c * s_out) if settings.c * s_out else 0.0
    target = step.target if settings.spread or step.kind == "migrate" else None
    if settings.spread == WITH_STATE and step.kind == "scale_out":
        step = replace(step, replica=max(operator.replicas, key=lambda r: r.use or 0.0).name)
    return replace(step, gain=round(GAIN[step.kind] + min(max(beyond, 0.0), 1.0) * 0.99, 4), target=target)
