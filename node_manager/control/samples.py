"""The policies' sample of a deployment (elasticity/scaling/model.py), from the monitor's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticity.scaling.model import Host, KeyGroups, Kind, OperatorSample, Replica, Sample
from node_manager.control.looks import SlotRates

# A live step does not interrupt the answers of a stateless deployment, and those of moved key groups only for milliseconds; policies that
# weigh gain against cost need a number above 0.
DOWNTIME_MS: Mapping[Kind, float] = {"scale_out": 1.0, "migrate": 1.0, "scale_in": 1.0, "balance": 1.0}


@dataclass(frozen=True)
class KeyedFigures:
    """Figures of a deployment that keeps state. key_groups: their number; groups: their places and loads, if known; prepared: the number
    of slots for which a scale-out is prepared."""

    key_groups: int = 0
    groups: KeyGroups | None = None
    prepared: int = 0


STATELESS = KeyedFigures()


def host(node: str, use: float, room: int) -> Host:
    """The node: use of its processors from 0 to 1, and the slots for which it has room."""
    return Host(node, _figure(use), room, {})


def sample(
    at_s: float, deployment: str, slots: Sequence[tuple[int, SlotRates | str]], on: Host, most: int, keyed: KeyedFigures = STATELESS
) -> Sample:
    """The sample of one deployment on one node. A slot without figures is a replica without figures.

    max_replicas is bounded by `most` and by the replicas that would get work: without state by the lanes that were open at once, since a
    lane stays in one slot; with state, where every lane is in all slots, by the key groups.
    """
    replicas = tuple(_replica(number, on.name, seen) for number, seen in slots)
    measured = [seen for _, seen in slots if not isinstance(seen, str)]
    lanes = sum(seen.lanes for seen in measured)
    responses = [seen.response_ms for seen in measured if seen.response_ms is not None]
    useful = keyed.key_groups or max(lanes, len(replicas), 1)
    operator = OperatorSample(deployment, replicas, max_replicas=min(most, useful), groups=keyed.groups, prepared=keyed.prepared)
    return Sample(at_s, (operator,), (on,), _figure(max(responses)) if responses else None, dict(DOWNTIME_MS))


def _replica(number: int, node: str, seen: SlotRates | str) -> Replica:
    if isinstance(seen, str):
        return Replica(str(number), node, None, None, None, None, None)
    use, arrivals, answers, outputs, backlog, memory, held = map(
        _figure, (seen.use, seen.arrivals, seen.answers, seen.outputs, seen.backlog, seen.memory, seen.held)
    )
    return Replica(str(number), node, use, arrivals, answers, outputs, backlog, 0.0, memory, held)


def _figure(value: float) -> float:
    """Round to the precision of a measurement: a journal keeps all digits."""
    return float(f"{value:.5g}")
