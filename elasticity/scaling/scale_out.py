"""Prepare the scale-out of an operator that keeps state before it is a bottleneck, and give the preparation up again (paper 3).

At each sample a policy names the operators for which a secondary execution is to run (`ScalingDecision.prepared`): from δ2′ on. These
and the present preparations determine the steps prepare and stand_down; a step scale_out takes over. A preparation is kept for hold_s
after it was last wanted, and changed at most once in hold_s, so that a load around δ2′ causes no flapping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from elasticity.scaling.model import GAIN, OperatorSample, Plan, Sample

# active-backup: the new replicas run, and follow the state that they will take over. checkpoint: the state is written more often, and
# the new replicas start at the take-over.
ACTIVE_BACKUP, CHECKPOINT = "active-backup", "checkpoint"
STRATEGIES = (ACTIVE_BACKUP, CHECKPOINT)
STRATEGY = ACTIVE_BACKUP
# Six decisions: a take-over that was declined for lack of a token is proposed again by then.
HOLD_S = 60.0
# Between two refreshes of a prepared scale-out (the paper's checkpoint interval c, there 1 s).
REFRESH_S = 1.0
# Each refresh takes a checkpoint of the slots that serve.
LEAST_REFRESH_S = 0.1


@dataclass(frozen=True)
class PreparedMemory:
    """The state of one operator: when a preparation was last wanted, and when one was last begun, given up or used."""

    wanted_s: float | None = None
    changed_s: float | None = None


def propose(
    sample: Sample, asked: Plan, operator: OperatorSample, memory: PreparedMemory, wanted: bool, hold_s: float
) -> tuple[Plan | None, PreparedMemory]:
    """The step due for the operator's preparation, if any, and the memory with it.

    asked: the scale-out to prepare. wanted: whether the policy wants the operator prepared or scaled out. An operator without key groups
    has nothing to prepare.
    """
    at_s, now, to = sample.at_s, len(operator.replicas), asked.replicas
    if wanted or (operator.prepared and memory.wanted_s is None):  # a preparation older than the memory is kept for hold_s as well
        memory = replace(memory, wanted_s=at_s)
    if memory.changed_s is not None and at_s - memory.changed_s < hold_s:
        return None, memory
    changed = replace(memory, changed_s=at_s)
    if wanted:
        if operator.groups is None or to <= now or operator.prepared == to:
            return None, memory
        return Plan(operator.name, "prepare", to, GAIN["prepare"], 0.0, asked.why), changed
    if not operator.prepared or memory.wanted_s is None or at_s - memory.wanted_s < hold_s:
        return None, memory
    text = f"nothing has asked for it for {at_s - memory.wanted_s:.0f} s"
    return Plan(operator.name, "stand_down", now, GAIN["stand_down"], 0.0, text), changed


def taken_over(memory: PreparedMemory, at_s: float) -> PreparedMemory:
    """The memory after a scale-out is granted."""
    return replace(memory, changed_s=at_s)


def grown(operator: OperatorSample, grow: float, most: int) -> int:
    """Replicas of an operator after scaling out by the factor `grow`."""
    return min(math.ceil(len(operator.replicas) * grow), operator.max_replicas, most)


def fairness_degree(assigned: list[float], needed: list[float]) -> float:
    """fd = ∫assigned / ∫needed (paper 3, equation 5) over intervals of equal length: 1 if an operator always had what it needed.

    A surplus at one time does not make up for a lack at another. 1 for an operator that needed nothing.
    """
    total = sum(needed)
    return sum(min(a, n) for a, n in zip(assigned, needed, strict=True)) / total if total else 1.0
