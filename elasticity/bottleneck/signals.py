"""Convert measurements of an operator's slots into the inputs of the detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Preparing another slot takes some seconds: queues are judged by their expected length once it could take over.
HORIZON_S = 10.0
# The names of the inputs.
INPUTS = ("use", "memory", "queue")


@dataclass(frozen=True)
class SlotSample:
    """One slot over one interval.

    cpu, memory: shares of its limits. busy: share of the time in the operator, calls to others included. blocked: share of the
    time in which its answers had no room downstream. arrivals, answers: events/s. backlog: events waiting at the end. held: share of
    the time in which callers had as much under way as allowed, and waited for answers before they sent more.
    """

    cpu: float
    memory: float
    busy: float
    blocked: float
    arrivals: float
    answers: float
    backlog: float
    held: float = 0.0


def inputs(slots: Sequence[SlotSample]) -> dict[str, float] | None:
    """The inputs of rules.toml, each from the slot that is worst off, since a mean hides a skewed slot. None if nothing was measured.

    use and memory are shares, queue is in seconds of work. A queue that grows because answers have no room is not this operator's
    work: the share of time blocked does not count.
    """
    if not slots:
        return None
    return {
        "use": max(max(s.cpu, s.busy) for s in slots),
        "memory": max(s.memory for s in slots),
        "queue": max(_work_s(s) * (1 - s.blocked) for s in slots),
    }


def _work_s(slot: SlotSample) -> float:
    """Seconds of work expected to wait HORIZON_S from now, at the rate of answers per second of busy time.

    A queue whose callers are held back no longer grows, and the work that waits in them is not known: it counts as HORIZON_S of work if
    they are held back all the time, and as nothing if they are free for half of the time, in which the queue was worked off.
    """
    per_s = slot.answers / slot.busy if slot.busy > 0 else slot.answers
    waiting = max(slot.backlog + (slot.arrivals - slot.answers) * HORIZON_S, 0.0)
    in_queue_s = waiting / per_s if per_s > 0 else (float("inf") if waiting > 0 else 0.0)
    return max(in_queue_s, HORIZON_S * (2 * slot.held - 1))
