"""Applications as a scaling policy sees them, built for tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from elasticity import policies
from elasticity.scaling.model import Host, Kind, OperatorSample, Plan, Replica, Sample

COSTS: dict[Kind, float] = {"scale_out": 50.0, "migrate": 50.0, "scale_in": 50.0}


def replica(name: str = "r0", use: float | None = 0.6, **more: Any) -> Replica:
    """A replica on node n0 that answers 100 events/s when busy, keeps up, and passes on all."""
    answers = more.pop("answers", None if use is None else 100 * use)
    figures = {"node": "n0", "arrivals": answers, "answers": answers, "outputs": answers, "backlog": 0.0} | more
    return Replica(name, use=use, **figures)


def operator(
    name: str = "op", uses: tuple[float | None, ...] = (0.6,), upstream: str = "", most: int = 1_000, **more: Any
) -> OperatorSample:
    """An operator with one replica for each use."""
    replicas = tuple(replica(f"{name}-{i}", use, **more) for i, use in enumerate(uses))
    return OperatorSample(name, replicas, (upstream,) if upstream else (), most)


def node(name: str = "n0", use: float = 0.3, room: int = 4, **delays_ms: float) -> Host:
    """A host with its neighbours."""
    return Host(name, use, room, delays_ms)


def sample(*operators: OperatorSample, at_s: float = 0.0, nodes: tuple[Host, ...] = (), response_ms: float | None = 50.0) -> Sample:
    """A sample of an application; by default on a node with room that has a neighbour with room."""
    return Sample(at_s, operators, nodes or (node(n1=1.0), node("n1", n0=1.0)), response_ms, COSTS)


def kinds(plans: Any) -> list[tuple[str, str, int]]:
    """The plans as (operator, kind, replicas afterwards)."""
    return [(p.operator, p.kind, p.replicas) for p in plans if isinstance(p, Plan)]


def decide(policy: Callable[..., Any], seen: Sample, memory: Any = None, rng: random.Random | None = None, /, **settings: Any) -> Any:
    """The decision of this policy and its memory, with these of its settings."""
    return policy(seen, memory, rng or random.Random(1), policies.settings(policy, settings))
