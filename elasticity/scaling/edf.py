"""EDF: an Operator Manager per operator proposes, one Application Manager grants (paper 5, section 3)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from elasticity.scaling import guards
from elasticity.scaling.model import Host, Kind, OperatorSample, Plan, Sample, ScalingDecision, plan

# Paper 5, section 4, as are the defaults of the settings.
R_MAX_MS = 200.0
# The window of the SLA's second objective, downtime.
DOWNTIME_WINDOW_S = 3600.0


class Costed(Protocol):
    """An item that an Application Manager ranks: a plan, or another node's proposal."""

    @property
    def gain(self) -> float:
        """The improvement by the step, without a unit: comparable only with that of other steps."""

    @property
    def cost_ms(self) -> float:
        """The downtime that the step costs, in ms."""

    @property
    def kind(self) -> Kind:
        """The kind of the step."""


Step = TypeVar("Step", bound=Costed)


@dataclass(frozen=True)
class Bucket:
    """The token bucket: its tokens, the part of the next one already earned, and recent downtime.

    spent: measured; reserved: expected of granted steps, and not measured so far. Both are (when, ms).
    """

    tokens: int = 0
    earned: float = 0.0  # part of the next token
    at_s: float | None = None
    spent: tuple[tuple[float, float], ...] = ()
    reserved: tuple[tuple[float, float], ...] = ()

    def measured(self, at_s: float, down_ms: float) -> Bucket:
        """The bucket after down_ms of downtime. It is taken from what is reserved, oldest first: a step's downtime counts once."""
        left, reserved = down_ms, list[tuple[float, float]]()
        for when, ms in self.reserved:
            paid = min(ms, left)
            left -= paid
            if ms > paid:
                reserved.append((when, ms - paid))
        return replace(self, spent=(*self.spent, (at_s, down_ms)) if down_ms else self.spent, reserved=tuple(reserved))

    def recent(self, at_s: float) -> Bucket:
        """The bucket without the downtime that has left the window."""

        def within(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
            return tuple((when, ms) for when, ms in pairs if at_s - when < DOWNTIME_WINDOW_S)

        return replace(self, spent=within(self.spent), reserved=within(self.reserved))


@dataclass(frozen=True)
class EdfMemory:
    """The state of the Application Manager and all Operator Managers."""

    bucket: Bucket = field(default_factory=Bucket)
    calm: guards.Calm = field(default_factory=guards.Calm)


@dataclass(frozen=True)
class OperatorManagerSettings:
    """The thresholds of `operator_manager`, as shares: use of a node, use of a replica, the part of the latter below which it shrinks."""

    u_max: float = 0.7
    s_out: float = 0.7
    c: float = 0.75


@dataclass(frozen=True)
class GuardedSettings(OperatorManagerSettings):
    """calm_s (ours): an operator shrinks only if its replicas were not needed for this long, else it follows every trough of the load."""

    calm_s: float = 600.0


@dataclass(frozen=True)
class TokenSettings:
    """A token is earned every token_s while the response time is above beta times the agreed one; at most `capacity` are kept."""

    beta: float = 0.75
    token_s: float = 60.0
    capacity: int = 1


@dataclass(frozen=True)
class EdfSettings(GuardedSettings, TokenSettings):
    """r_max_ms: the agreed response time. idle_token_s (ours; None as in the paper): otherwise a token is earned this often, so that
    replicas are given back. downtime_share: the SLA's second objective, share of the last hour; None: no limit."""

    r_max_ms: float = R_MAX_MS
    idle_token_s: float | None = None
    downtime_share: float | None = None


def accept_all(sample: Sample, memory: None, rng: random.Random, settings: OperatorManagerSettings) -> tuple[ScalingDecision, None]:
    """The paper's baseline: grant every proposal of an Operator Manager."""
    return ScalingDecision(granted=tuple(p for o in sample.operators for p in operator_manager(sample, o, rng, settings))), None


def edf(sample: Sample, memory: EdfMemory | None, rng: random.Random, settings: EdfSettings) -> tuple[ScalingDecision, EdfMemory]:
    """Grant the proposals that the guards let pass by gain ÷ cost, best first, a token each."""
    memory = memory or EdfMemory()
    calm, proposals, declined = memory.calm, list[Plan](), list[tuple[Plan, str]]()
    for operator in sample.operators:
        wanted, refused, calm = guarded(sample, operator, rng, calm, settings)
        proposals += wanted
        declined += refused
    worried = sample.response_ms is not None and sample.response_ms > settings.beta * settings.r_max_ms
    bucket = refill(memory.bucket, sample.at_s, settings.token_s if worried else settings.idle_token_s, settings.capacity)
    granted, refused, bucket = application_manager(proposals, bucket, sample.at_s, settings.downtime_share)
    return ScalingDecision(tuple(granted), (*declined, *refused)), EdfMemory(bucket, calm)


def guarded(
    sample: Sample, operator: OperatorSample, rng: random.Random, calm: guards.Calm, settings: GuardedSettings
) -> tuple[list[Plan], list[tuple[Plan, str]], guards.Calm]:
    """Proposals of an operator's manager that the guards let pass; those that they stop, with the reason; and the calm afterwards."""
    wanted, now, s_out = operator_manager(sample, operator, rng, settings), len(operator.replicas), settings.s_out
    shrink = next((p for p in wanted if p.kind == "scale_in" and not guards.against_scale_in(operator, p.replicas, s_out)), None)
    calm, allowed = calm.shrink(operator.name, shrink.replicas if shrink else now, now, sample.at_s, settings.calm_s)
    proposals, declined = list[Plan](), list[tuple[Plan, str]]()
    for p in wanted:
        reason = None
        if p.kind == "scale_out":
            reason = guards.against_scale_out(sample, operator)
        elif p.kind == "scale_in":
            reason = guards.against_scale_in(operator, p.replicas, s_out) or (None if allowed < now else "not calm for long enough")
        if reason:
            declined.append((p, reason))
        else:
            proposals.append(p)
    return proposals, declined, calm


def operator_manager(sample: Sample, operator: OperatorSample, rng: random.Random, settings: OperatorManagerSettings) -> list[Plan]:
    """The local policy (section 3.1): the proposals of one operator's manager, which sees its own replicas, their nodes and the neighbours.

    At most one replica moves from a node above u_max; one is added if a replica is used above s_out, else one of the two busiest
    goes if the use of the others would stay below c · s_out.
    """
    nodes, plans, n = {node.name: node for node in sample.nodes}, list[Plan](), len(operator.replicas)
    if any(r.use is None for r in operator.replicas) or not operator.replicas:
        return []
    overloaded = [r for r in operator.replicas if nodes[r.node].use > settings.u_max]
    if overloaded:
        replica = rng.choice(overloaded)
        target = near(nodes[replica.node], nodes, rng, settings.u_max)
        if target:
            why = f"node {replica.node} is used {nodes[replica.node].use:.0%}"
            plans.append(plan(sample, operator, "migrate", n, why, replica.name, target))
    busiest = sorted(operator.replicas, key=lambda r: r.use or 0.0, reverse=True)
    use = [r.use or 0.0 for r in busiest]
    if use[0] > settings.s_out:
        target = near(nodes[busiest[0].node], nodes, rng, settings.u_max)
        why = f"replica {busiest[0].name} is used {use[0]:.0%}"
        plans.append(plan(sample, operator, "scale_out", n + 1, why, target=target))
    elif n > 1 and sum(use) / (n - 1) < settings.c * settings.s_out:
        why = f"the others would be used {sum(use) / (n - 1):.0%}"
        plans.append(plan(sample, operator, "scale_in", n - 1, why, replica=rng.choice(busiest[:2]).name))
    return plans


def near(node: Host, nodes: dict[str, Host], rng: random.Random, u_max: float = 1.0) -> str | None:
    """A random neighbour with room, the closer the likelier; None if no neighbour has room.

    Neighbours above u_max are left out (ours): the replica would leave them again at once.
    """
    left = dict(node.delays_ms)
    while left:
        names = list(left)
        [drawn] = rng.choices(names, weights=[1 / max(left[n], 1e-3) for n in names])
        if nodes[drawn].room > 0 and nodes[drawn].use <= u_max:
            return drawn
        del left[drawn]
    return None


def application_manager(
    proposals: Iterable[Step], bucket: Bucket, at_s: float, downtime_share: float | None
) -> tuple[list[Step], list[tuple[Step, str]], Bucket]:
    """The global policy (section 3.2): granted plans, declined ones with the reason, and the bucket afterwards.

    Balancing needs no token (ours): it takes no further replica, and comes before steps that do.
    """
    bucket = bucket.recent(at_s)
    granted, declined, tokens = list[Step](), list[tuple[Step, str]](), bucket.tokens
    down_ms, reserved = sum(ms for _, ms in (*bucket.spent, *bucket.reserved)), bucket.reserved
    for p in sorted(proposals, key=lambda p: p.gain / max(p.cost_ms, 1e-3), reverse=True):
        budget_ms = float("inf") if downtime_share is None else 1000 * downtime_share * DOWNTIME_WINDOW_S
        price = 0 if p.kind == "balance" else 1
        if tokens < price:
            declined.append((p, "no token"))
        elif down_ms + p.cost_ms > budget_ms:
            declined.append((p, "the downtime of the last hour allows no more"))
        else:
            granted.append(p)
            tokens -= price
            down_ms += p.cost_ms
            reserved = (*reserved, (at_s, p.cost_ms))
    return granted, declined, replace(bucket, tokens=tokens, reserved=reserved)


def refill(bucket: Bucket, at_s: float, token_s: float | None, capacity: int) -> Bucket:
    """The bucket at the end of a control interval; token_s: seconds per token at the present response time, None: no token is earned."""
    passed = 0.0 if bucket.at_s is None else at_s - bucket.at_s
    earned = bucket.earned + (passed / token_s if token_s else 0.0)
    new = int(earned)
    return replace(bucket, tokens=min(bucket.tokens + new, capacity), earned=earned - new, at_s=at_s)
