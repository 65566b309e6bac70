"""Scaling of a deployment by one node alone: a scaling policy by name, within bounds, with tokens, and without quick reversals.

Whatever the inner policy proposes, even if it has no guards of its own, the number of replicas changes its direction at most once in
reverse_s, and a token bucket bounds the steps (paper 5, section 3.2). Only the bounds themselves are enforced at once. A keyed operator
is balanced before it scales out, and scales out if that was not enough (paper 2, section 5). Its scale-out is prepared beforehand, if
the policy says so (scale_out.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elasticity import policies
from elasticity.scaling import balancing, scale_out
from elasticity.scaling.balancing import BalanceMemory, BalanceProposal, BalanceSettings
from elasticity.scaling.edf import Bucket, refill
from elasticity.scaling.fuzzy import FuzzySettings
from elasticity.scaling.model import Kind, OperatorSample, Plan, Sample, ScalingDecision, plan
from elasticity.scaling.scale_out import PreparedMemory

POLICY = "fuzzy"
# If other replicas are used above this, scaling out helps even if there is a hot key group.
MOST_USE = 0.8


@dataclass(frozen=True)
class LocalMemory:
    """The state of the inner policy, the bucket, each operator's last change of its number of replicas (kind and when), balancing, and
    prepared scale-outs."""

    inner: Any = None
    bucket: Bucket | None = None
    steps: Mapping[str, tuple[Kind, float]] = field(default_factory=dict)
    balance: Mapping[str, BalanceMemory] = field(default_factory=dict)
    events_s: Mapping[str, float] = field(default_factory=dict)  # when an operator last had an event
    prepared: Mapping[str, PreparedMemory] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalSettings(BalanceSettings):
    """`policy` decides, with the settings `inner`: all those that are not among the following. least, most: replicas."""

    policy: str = POLICY
    inner: Mapping[str, Any] = field(default_factory=dict)
    least: int = 1
    most: int = 1
    # A new slot takes some seconds to load and to get lanes; two steps in a row allow for a load that jumps.
    token_s: float = 30.0
    capacity: int = 2
    # After this long without an event an operator has no replica until one comes; 0: never. It is woken without a decision.
    idle_after_s: float = 0.0
    # How an operator with state scales out (scale_out.STRATEGIES), '' for unprepared; how long prepared slots stay unchanged; and the time
    # between two refreshes of them by the node manager.
    strategy: str = scale_out.STRATEGY
    hold_s: float = scale_out.HOLD_S
    refresh_s: float = scale_out.REFRESH_S


def local(sample: Sample, memory: LocalMemory | None, rng: random.Random, settings: LocalSettings) -> tuple[ScalingDecision, LocalMemory]:
    """The decision of the inner policy, limited by least, most, the tokens and reverse_s."""
    memory, least, most, reverse_s = memory or LocalMemory(), settings.least, settings.most, settings.reverse_s
    policy = policies.find("scaling", settings.policy)
    decided, inner = policy(sample, memory.inner, rng, policies.settings(policy, settings.inner))
    bucket = refill(memory.bucket or Bucket(tokens=settings.capacity), sample.at_s, settings.token_s, settings.capacity)
    granted, declined, steps, balances = list[Plan](), list(decided.declined), dict(memory.steps), dict(memory.balance)
    prepared = dict(memory.prepared)
    events_s = {o.name: sample.at_s if _at_work(o) else memory.events_s.get(o.name, sample.at_s) for o in sample.operators}
    for o in sample.operators:
        found, mine = balancing.propose(sample, o, balances.get(o.name, BalanceMemory()), settings)
        balances[o.name], last = mine, steps.get(o.name)
        if settings.idle_after_s and not o.replicas:  # a frame wakes it
            continue
        if settings.idle_after_s and o.groups is None and sample.at_s - events_s[o.name] >= settings.idle_after_s:
            granted.append(plan(sample, o, "scale_in", 0, f"no event for {sample.at_s - events_s[o.name]:.0f} s"))
            continue
        if (needed := bound(sample, o, least, most)) is not None:
            granted.append(needed)
            steps[o.name] = (needed.kind, sample.at_s)
            continue
        wanted = [_within(p, o, least, most) for p in decided.granted if p.operator == o.name]
        judged = [(p, why or in_vain(p, o, found) or against(last, p, sample.at_s, reverse_s)) for p, why in wanted]
        if not bucket.tokens:
            judged = [(p, why or "no token") for p, why in judged]
        before = len(granted)
        if found.plan is not None and not settling(last, sample.at_s, settings.balance_s):
            scales_out = any(p.kind == "scale_out" and why is None for p, why in judged)
            if not (scales_out and balanced(mine, last, sample.at_s, reverse_s)):
                granted.append(found.plan)
                balances[o.name] = balancing.granted(mine, found.plan, sample.at_s, reverse_s)
                judged = [(p, why or "its key groups are balanced first") for p, why in judged]
        taken = False
        for p, why in judged:
            if why is None and p.kind == "scale_out" and mine.last_s is not None and sample.at_s - mine.last_s < settings.balance_s:
                why = f"its key groups were balanced {sample.at_s - mine.last_s:.0f} s ago"
            if why or taken:
                declined.append((p, why or "one step at a time"))
                continue
            granted.append(p)
            bucket, taken = replace(bucket, tokens=bucket.tokens - 1), True
            steps[o.name] = (p.kind, sample.at_s)
        if len(granted) > before:
            if granted[-1].kind == "scale_out":
                prepared[o.name] = scale_out.taken_over(prepared.get(o.name, PreparedMemory()), sample.at_s)
            continue
        asked = plan(sample, o, "scale_out", scale_out.grown(o, settings.inner.get("grow", FuzzySettings.grow), most), _soon(o))
        ahead = bool(settings.strategy) and (o.name in decided.prepared or any(p.kind == "scale_out" for p, _ in wanted))
        ahead = ahead and not (in_vain(asked, o, found) or against(last, asked, sample.at_s, reverse_s))
        step, prepared[o.name] = scale_out.propose(sample, asked, o, prepared.get(o.name, PreparedMemory()), ahead, settings.hold_s)
        granted += [] if step is None else [step]
    memory = LocalMemory(inner, bucket, steps, balances, events_s, prepared)
    return ScalingDecision(tuple(granted), tuple(declined), decided.prepared), memory


def bound(sample: Sample, operator: OperatorSample, least: int, most: int) -> Plan | None:
    """The step that brings the operator within its bounds; None if it is within them."""
    now = len(operator.replicas)
    if now < least:
        return plan(sample, operator, "scale_out", least, f"at least {least}")
    return plan(sample, operator, "scale_in", most, f"at most {most}") if now > most else None


def _within(p: Plan, operator: OperatorSample, least: int, most: int) -> tuple[Plan, str | None]:
    """The plan within the bounds, and the reason if that leaves no step."""
    if p.kind == "migrate":
        return p, "a node alone moves no replica"
    top = max(min(most, operator.max_replicas), least)
    step = replace(p, replicas=min(max(p.replicas, least), top))
    now = len(operator.replicas)
    pointless = step.replicas <= now if p.kind == "scale_out" else step.replicas >= now
    return step, f"it has {now} of {least} to {top}" if pointless else None


def _soon(operator: OperatorSample) -> str:
    """The reason to prepare its scale-out."""
    return f"a bottleneck soon: used {max((r.use or 0.0 for r in operator.replicas), default=0.0):.0%}"


def _at_work(operator: OperatorSample) -> bool:
    """Whether events came, waited or were answered, or this is unknown; False without replicas: a frame wakes the operator."""
    return any(not r.measured or r.arrivals or r.answers or r.backlog for r in operator.replicas)


def settling(last: tuple[Kind, float] | None, at_s: float, balance_s: float) -> bool:
    """Whether part of the measurements stems from another number of replicas."""
    return last is not None and at_s - last[1] < balance_s


def balanced(memory: BalanceMemory, last: tuple[Kind, float] | None, at_s: float, reverse_s: float) -> bool:
    """Whether balancing was the last thing tried, so that scaling out comes next."""
    if memory.last_s is None or at_s - memory.last_s >= reverse_s:
        return False
    return last is None or last[1] < memory.last_s


def in_vain(step: Plan, operator: OperatorSample, found: BalanceProposal) -> str | None:
    """The reason why scaling out would not help: further replicas do not relieve one that is busy with a hot key group."""
    if step.kind != "scale_out" or found.hot_replica is None:
        return None
    others = [r.use or 0.0 for i, r in enumerate(operator.replicas) if i != found.hot_replica]
    if max(others, default=1.0) > MOST_USE:
        return None
    return f"more replicas do not relieve {operator.replicas[found.hot_replica].name} of {found.too_hot}"


def against(last: tuple[Kind, float] | None, step: Plan, at_s: float, reverse_s: float) -> str | None:
    """The reason against a step that would reverse the last one too soon; None if it does not."""
    if last is None or last[0] == step.kind or at_s - last[1] >= reverse_s:
        return None
    return f"the last step was the opposite one, {at_s - last[1]:.0f} s ago"
