"""Scaling by fuzzy bottleneck detection: prepare at δ2′, take over at δ2, scale in under δ1 (paper 3)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticity.bottleneck import fuzzy as logic
from elasticity.bottleneck.detector import Patience, Watch, step
from elasticity.bottleneck.signals import Slot, inputs
from elasticity.scaling import guards
from elasticity.scaling.model import Decision, Operator, Plan, Sample, plan

# The paper doubles the executors of a bottleneck.
GROW = 2.0
# Busiest replica after scaling in, as in DS2.
MOST_USE = 0.8


@dataclass(frozen=True)
class Memory:
    """A watch per operator."""

    watches: Mapping[str, Watch] = field(default_factory=dict)


def fuzzy(
    sample: Sample, memory: Memory | None, rng: random.Random, *, grow: float = GROW, confirm: int = 2, calm: int = 20, settle: int = 4
) -> tuple[Decision, Memory]:
    """A bottleneck gets `grow` times the replicas, an idle operator loses one. confirm, calm, settle: samples, see Patience."""
    watches, model = dict((memory or Memory()).watches), logic.shipped()
    granted, declined = list[Plan](), list[tuple[Plan, str]]()
    for o in sample.operators:
        seen = None if guards.unmeasured(o) else inputs([_slot(o, i) for i in range(len(o.replicas))])
        found = logic.evaluate(model, seen) if seen else None
        patience = Patience(confirm, calm, settle)
        watches[o.name], what = step(watches.get(o.name, Watch()), found.load if found else None, model.thresholds, patience)
        if found is None or what not in ("take_over", "scale_in"):
            continue
        why = found.text().splitlines()[0]
        if what == "take_over":
            to = min(math.ceil(len(o.replicas) * grow), o.max_replicas)
            p, reason = plan(sample, o, "scale_out", to, why), guards.against_scale_out(sample, o)
        else:
            to = len(o.replicas) - 1
            p, reason = plan(sample, o, "scale_in", to, why), guards.against_scale_in(o, to, MOST_USE)
        if reason:
            declined.append((p, reason))
        else:
            granted.append(p)
    prepared = tuple(name for name, watch in watches.items() if watch.prepared)
    return Decision(tuple(granted), tuple(declined), prepared), Memory(watches)


def _slot(operator: Operator, i: int) -> Slot:
    r = operator.replicas[i]
    return Slot(r.use or 0.0, r.memory, r.use or 0.0, r.blocked, r.arrivals or 0.0, r.answers or 0.0, r.backlog or 0.0)
