"""DS2: compute replicas from source rates, selectivities and true processing rates (Kalavri et al., OSDI 2018; Flink's FLIP-271)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticity.scaling import guards
from elasticity.scaling.model import OperatorSample, Plan, Sample, ScalingDecision, plan

# Scaling out that brought less than this share of the expected capacity is not repeated for HOLD_S.
EFFECTIVE, HOLD_S = 0.1, 1800.0
# A replica whose answers had no room for more than this share of the time could have answered more than it did.
BLOCKED = 0.1


@dataclass(frozen=True)
class Ds2Memory:
    """Last known events/s per busy replica and outputs per event; calm; expected results of scaling out; operators held."""

    rate: Mapping[str, float] = field(default_factory=dict)
    selectivity: Mapping[str, float] = field(default_factory=dict)
    calm: guards.Calm = field(default_factory=guards.Calm)
    expected: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)  # replicas, capacity before, capacity expected
    held: Mapping[str, float] = field(default_factory=dict)  # until when


@dataclass(frozen=True)
class Ds2Settings:
    """FLIP-271's defaults: replicas are to be busy for target_use of the time, and only a use below least_use or above most_use changes
    their number. catch_up_s: the time within which a backlog is to be gone. calm_s: see edf.GuardedSettings."""

    target_use: float = 0.6
    most_use: float = 0.8
    least_use: float = 0.4
    catch_up_s: float = 60.0
    calm_s: float = 600.0


def ds2(sample: Sample, memory: Ds2Memory | None, rng: random.Random, settings: Ds2Settings) -> tuple[ScalingDecision, Ds2Memory]:
    """Set all operators at once to the number of replicas that gives a use of target_use; grant all that the guards let pass."""
    memory = memory or Ds2Memory()
    operators = guards.in_order(sample.operators)
    rate, selectivity = dict(memory.rate), dict(memory.selectivity)
    for o in operators:
        if (measured := true_rate(o)) is not None:
            rate[o.name] = measured
        if (ratio := _selectivity(o)) is not None:
            selectivity[o.name] = ratio
    held, expected = _judge(sample, memory, rate)
    arriving = demand(operators, rate, selectivity, settings.catch_up_s)
    calm, granted, declined = memory.calm, list[Plan](), list[tuple[Plan, str]]()
    for o in operators:
        now, wanted = len(o.replicas), arriving[o.name]
        if o.name not in rate or guards.unmeasured(o):
            continue
        use = wanted / (rate[o.name] * now)
        needed = min(max(math.ceil(wanted / (rate[o.name] * settings.target_use)), 1), o.max_replicas)
        needed = needed if use > settings.most_use and needed > now or use < settings.least_use and needed < now else now
        against = guards.against_scale_in(o, needed, settings.most_use) if needed < now else None
        calm, shrunk = calm.shrink(o.name, now if against else needed, now, sample.at_s, settings.calm_s)
        why = f"{wanted:.0f} events/s at {rate[o.name]:.0f} a replica"
        if needed < now:
            p = plan(sample, o, "scale_in", min(shrunk, now - 1), why)
            reason = against or (None if shrunk < now else "not calm for long enough")
        elif needed > now:
            p = plan(sample, o, "scale_out", needed, why)
            reason = "scaling out has not helped recently" if o.name in held else guards.against_scale_out(sample, o)
        else:
            continue
        if reason:
            declined.append((p, reason))
            continue
        granted.append(p)
        if p.kind == "scale_out":  # with the replicas granted, not with those wanted (FLINK-39743)
            expected[o.name] = (p.replicas, rate[o.name] * now, rate[o.name] * p.replicas)
    return ScalingDecision(tuple(granted), tuple(declined)), Ds2Memory(rate, selectivity, calm, expected, held)


def true_rate(operator: OperatorSample) -> float | None:
    """Events/s that a replica could answer if it worked all the time and got its share; None if unknown.

    The replica with the most arrivals bounds them all (FLINK-30652). If an operator falls behind although it looks idle, its present
    answers are its capacity (FLINK-33306).
    """
    if guards.unmeasured(operator):
        return None
    replicas, n = operator.replicas, len(operator.replicas)
    use, answers, arrivals = (sum(getattr(r, name) for r in replicas) for name in ("use", "answers", "arrivals"))
    if use <= 0 or answers <= 0:
        return None
    rate = float(answers / use)
    blocked = any(r.blocked > BLOCKED for r in replicas)
    if arrivals > answers and guards.backlog_s(operator) > guards.BACKLOG_S and not blocked:
        rate = min(rate, answers / n)
    skew = max(r.arrivals or 0.0 for r in replicas) * n / arrivals if arrivals > 0 else 1.0
    return rate / max(skew, 1.0)


def demand(
    operators: list[OperatorSample], rate: Mapping[str, float], selectivity: Mapping[str, float], catch_up_s: float
) -> dict[str, float]:
    """Events/s that each operator must answer: source rates times the selectivities upstream, plus its backlog.

    Bounded by the capacity of the operator and of those downstream with all their replicas (FLINK-31215). `operators` by `in_order`.
    """
    most: dict[str, float] = {}
    for o in reversed(operators):
        most[o.name] = min(
            (most[d.name] / selectivity.get(o.name, 1.0) for d in operators if o.name in d.upstream and selectivity.get(o.name, 1.0) > 0),
            default=math.inf,
        )
        if o.name in rate:
            most[o.name] = min(most[o.name], rate[o.name] * o.max_replicas)
    wanted: dict[str, float] = {}
    for o in operators:
        arrives = sum(wanted[u] * selectivity.get(u, 1.0) for u in o.upstream) if o.upstream else sum(r.arrivals or 0.0 for r in o.replicas)
        waiting = sum(r.backlog or 0.0 for r in o.replicas) if guards.backlog_s(o) > guards.BACKLOG_S else 0.0
        wanted[o.name] = min(arrives + waiting / catch_up_s, most[o.name])
    return wanted


def _selectivity(operator: OperatorSample) -> float | None:
    answers = sum(r.answers or 0.0 for r in operator.replicas)
    return sum(r.outputs or 0.0 for r in operator.replicas) / answers if answers > 0 and not guards.unmeasured(operator) else None


def _judge(sample: Sample, memory: Ds2Memory, rate: Mapping[str, float]) -> tuple[dict[str, float], dict[str, tuple[int, float, float]]]:
    """Operators held because scaling out brought nothing, and expectations that cannot be judged yet."""
    held = {name: until for name, until in memory.held.items() if until > sample.at_s}
    open_ = dict[str, tuple[int, float, float]]()
    for o in sample.operators:
        if o.name not in memory.expected:
            continue
        replicas, before, after = memory.expected[o.name]
        if len(o.replicas) < replicas or guards.unmeasured(o):
            open_[o.name] = memory.expected[o.name]
        elif rate[o.name] * len(o.replicas) - before < EFFECTIVE * (after - before):
            held[o.name] = sample.at_s + HOLD_S
    return held, open_
