"""Steps that a policy must not take whatever its figures say: lessons of Flink's autoscaler, shared by all policies.

Each guard returns the reason, for people; None means that nothing speaks against the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elasticity.scaling.model import OperatorSample, Sample

# More work waiting than this is a backlog; less comes and goes with every burst.
BACKLOG_S = 2.0
# A replica busier than this has no capacity to give away, whatever its operator's rates suggest.
SATURATED = 0.9


def unmeasured(operator: OperatorSample) -> str | None:
    """The reason not to decide about the operator: missing figures do not mean a load of 0 (FLINK-39925)."""
    missing = [r.name for r in operator.replicas if not r.measured]
    return f"no measurements of {', '.join(missing)}" if missing or not operator.replicas else None


def backlog_s(operator: OperatorSample) -> float:
    """Seconds of work waiting at the replica with the most, at the rate at which it answers when busy."""
    return max((_seconds(r.backlog or 0.0, r.answers or 0.0, r.use or 0.0) for r in operator.replicas), default=0.0)


def against_scale_in(operator: OperatorSample, replicas: int, most_use: float) -> str | None:
    """The reason not to shrink to this many replicas: missing figures, backlog (FLINK-31318), the busiest replica (FLINK-30652).

    A mean hides a skewed replica, and an output ratio that fell makes a busy operator look oversized (FLINK-38538).
    """
    if replicas < 1:
        return "the last replica is kept"
    if reason := unmeasured(operator):
        return reason
    if (waiting := backlog_s(operator)) > BACKLOG_S:
        return f"{waiting:.1f} s of work are waiting"
    busiest = max(r.use or 0.0 for r in operator.replicas)
    if busiest * len(operator.replicas) / replicas > most_use:
        return f"the busiest replica would be used {busiest * len(operator.replicas) / replicas:.0%}"
    return None


def against_scale_out(sample: Sample, operator: OperatorSample) -> str | None:
    """The reason why more replicas would not help: none are allowed, or a later, saturated operator cannot grow (FLINK-31215)."""
    if reason := unmeasured(operator):
        return reason
    if len(operator.replicas) >= operator.max_replicas:
        return f"it has its {operator.max_replicas} replicas"
    stuck = next((o for o in downstream(sample.operators, operator) if saturated(o) and len(o.replicas) >= o.max_replicas), None)
    return f"{stuck.name} downstream is saturated and cannot scale out" if stuck else None


def saturated(operator: OperatorSample) -> bool:
    """Whether a replica works all the time."""
    return any((r.use or 0.0) > SATURATED for r in operator.replicas)


def downstream(operators: Sequence[OperatorSample], operator: OperatorSample) -> list[OperatorSample]:
    """All operators that its events reach."""
    reached, names = [], {operator.name}
    for o in in_order(operators):
        if names & set(o.upstream):
            names.add(o.name)
            reached.append(o)
    return reached


def in_order(operators: Sequence[OperatorSample]) -> list[OperatorSample]:
    """The operators in topological order: every operator after all that it reads from."""
    left, done, ordered = list(operators), set[str](), list[OperatorSample]()
    while left:
        ready = [o for o in left if set(o.upstream) <= done]
        if not ready:
            raise ValueError(f"expected operators without a cycle that read from each other, got {', '.join(o.name for o in left)}")
        ordered += ready
        done |= {o.name for o in ready}
        left = [o for o in left if o.name not in done]
    return ordered


@dataclass(frozen=True)
class Calm:
    """When each operator began to need fewer replicas, and the most it has needed since: scaling in is lazy (FLINK-36018)."""

    since: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def shrink(self, name: str, needed: int, now: int, at_s: float, calm_s: float) -> tuple[Calm, int]:
        """Record that `needed` of `now` replicas would do. Returns the number to shrink to: `now` until `calm_s` have passed."""
        if needed >= now:
            return replace(self, since={k: v for k, v in self.since.items() if k != name}), now
        first_s, most = self.since.get(name, (at_s, needed))
        most = max(most, needed)
        if at_s - first_s >= calm_s:
            return replace(self, since={k: v for k, v in self.since.items() if k != name}), most
        return replace(self, since={**self.since, name: (first_s, most)}), now


def _seconds(backlog: float, answers: float, use: float) -> float:
    per_s = answers / use if use > 0 else answers
    return backlog / per_s if per_s > 0 else (float("inf") if backlog > 0 else 0.0)
