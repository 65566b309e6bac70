"""A scaling policy's view of an application, and its answer (paper 5, sections 2 and 3).

A policy is `policy(sample, memory, rng, settings) -> (ScalingDecision, memory)`: memory is its own, None at first, and never changed in
place; all randomness comes from rng; settings is a frozen dataclass of its own, with defaults (policies.settings). The same samples,
settings and seed lead to the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["scale_out", "migrate", "scale_in", "balance", "prepare", "stand_down"]
# Paper 5's order of gains, preceded by the step that takes no further replica (paper 2, section 5); only the order counts.
GAIN: Mapping[Kind, float] = {"balance": 4.0, "scale_out": 3.0, "migrate": 2.0, "scale_in": 1.0, "prepare": 0.0, "stand_down": 0.0}


@dataclass(frozen=True)
class Replica:
    """One replica over one interval; None where nothing was measured, which is not the same as 0.

    use: share of the interval in which it worked (S_α). blocked: share in which its answers had no room. arrivals, answers,
    outputs: events/s that came, were answered, and were passed on. backlog: events that wait at the end. held: share in which callers
    had as much under way as allowed, so that more may wait in them.
    """

    name: str
    node: str
    use: float | None
    arrivals: float | None
    answers: float | None
    outputs: float | None
    backlog: float | None
    blocked: float = 0.0
    memory: float = 0.0
    held: float = 0.0  # journals of earlier releases have none

    @property
    def measured(self) -> bool:
        """Whether every figure was measured."""
        return None not in (self.use, self.arrivals, self.answers, self.outputs, self.backlog)


@dataclass(frozen=True)
class KeyGroups:
    """For each key group of a keyed operator: the place of its replica among the operator's, and its events in the last window_s.

    elsewhere: names of replicas on other nodes, whose places follow those of the operator's own; their key groups do not move from here.
    """

    places: tuple[int, ...]
    events: tuple[int, ...]
    elsewhere: tuple[str, ...] = ()  # journals of earlier releases have none


@dataclass(frozen=True)
class OperatorSample:
    """An operator of the application; upstream: the operators it reads from, empty if it reads the source.

    groups: if it keeps state by key group, as far as they were measured. prepared: the number of replicas for which a scale-out is
    prepared; 0: none is.
    """

    name: str
    replicas: tuple[Replica, ...]
    upstream: tuple[str, ...] = ()
    max_replicas: int = 1_000
    groups: KeyGroups | None = None
    prepared: int = 0


@dataclass(frozen=True)
class Host:
    """A host. use: its CPU use over all it runs (U_r). room: replicas it can still take. delays_ms: network delay to its neighbours."""

    name: str
    use: float
    room: int
    delays_ms: Mapping[str, float]


@dataclass(frozen=True)
class Sample:
    """An application at one moment. response_ms: worst delay from source to sink. downtime_ms: present cost of each kind of step."""

    at_s: float
    operators: tuple[OperatorSample, ...]
    nodes: tuple[Host, ...]
    response_ms: float | None
    downtime_ms: Mapping[Kind, float]


@dataclass(frozen=True)
class Plan:
    """A step for one operator. replicas: their number afterwards; for prepare, the number to prepare a scale-out for (scale_out.py).

    scale_out: `target` is the node of the first new replica, if the policy chooses one, `replica` the one that shares its keys. migrate:
    `replica` goes to `target`. scale_in: `replica` goes, if the policy chooses one. balance: key groups and the replica that each goes to;
    over nodes all of them from one replica to one other.
    cost_ms: downtime. why: for people.
    """

    operator: str
    kind: Kind
    replicas: int
    gain: float
    cost_ms: float
    why: str
    replica: str | None = None
    target: str | None = None
    groups: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class ScalingDecision:
    """Plans to carry out, declined plans with the reason, and operators for which a secondary execution is to run."""

    granted: tuple[Plan, ...] = ()
    declined: tuple[tuple[Plan, str], ...] = ()
    prepared: tuple[str, ...] = ()


def plan(
    sample: Sample, operator: OperatorSample, kind: Kind, replicas: int, why: str, replica: str | None = None, target: str | None = None
) -> Plan:
    """A plan with the gain of its kind and the cost in the sample."""
    return Plan(operator.name, kind, replicas, GAIN[kind], sample.downtime_ms[kind], why, replica, target)
