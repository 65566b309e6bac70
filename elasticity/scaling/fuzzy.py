"""Scaling by fuzzy bottleneck detection: prepare at δ2′, take over at δ2, scale in under δ1 (paper 3)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticity.bottleneck import fuzzy as logic
from elasticity.bottleneck.detector import Hysteresis, OperatorHistory, step
from elasticity.bottleneck.signals import SlotSample, inputs
from elasticity.scaling import guards
from elasticity.scaling.model import OperatorSample, Plan, Sample, ScalingDecision, plan

# Most use of the busiest replica after scaling in, as in DS2.
MOST_USE = 0.8


@dataclass(frozen=True)
class FuzzyMemory:
    """The history of each operator."""

    watches: Mapping[str, OperatorHistory] = field(default_factory=dict)


@dataclass(frozen=True)
class FuzzySettings:
    """grow: the factor by which the replicas of a bottleneck grow; the paper doubles its executors. confirm, calm, settle: samples, see
    Hysteresis. rules: text of a rule table, '' for the shipped one."""

    grow: float = 2.0
    confirm: int = 2
    calm: int = 20
    settle: int = 4
    rules: str = ""


def fuzzy(sample: Sample, memory: FuzzyMemory | None, rng: random.Random, settings: FuzzySettings) -> tuple[ScalingDecision, FuzzyMemory]:
    """Give a bottleneck `grow` times its replicas, take one from an idle operator."""
    watches, model = dict((memory or FuzzyMemory()).watches), logic.given(settings.rules)
    patience = Hysteresis(settings.confirm, settings.calm, settings.settle)
    granted, declined = list[Plan](), list[tuple[Plan, str]]()
    for o in sample.operators:
        seen = None if guards.unmeasured(o) else inputs([_slot(o, i) for i in range(len(o.replicas))])
        found = logic.evaluate(model, seen) if seen else None
        watches[o.name], what = step(watches.get(o.name, OperatorHistory()), found.load if found else None, model.thresholds, patience)
        if found is None or what not in ("take_over", "scale_in"):
            continue
        why = found.text().splitlines()[0]
        if what == "take_over":
            to = min(math.ceil(len(o.replicas) * settings.grow), o.max_replicas)
            p, reason = plan(sample, o, "scale_out", to, why), guards.against_scale_out(sample, o)
        else:
            to = len(o.replicas) - 1
            p, reason = plan(sample, o, "scale_in", to, why), guards.against_scale_in(o, to, MOST_USE)
        if reason:
            declined.append((p, reason))
        else:
            granted.append(p)
    prepared = tuple(name for name, watch in watches.items() if watch.prepared)
    return ScalingDecision(tuple(granted), tuple(declined), prepared), FuzzyMemory(watches)


def _slot(operator: OperatorSample, i: int) -> SlotSample:
    r = operator.replicas[i]
    return SlotSample(r.use or 0.0, r.memory, r.use or 0.0, r.blocked, r.arrivals or 0.0, r.answers or 0.0, r.backlog or 0.0, r.held)
