"""What the monitor has seen of a deployment, as the policies take it (elasticity/scaling/model.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticity.scaling.model import Host, KeyGroups, Kind, OperatorSample, Replica, Sample
from node_manager.control.looks import SlotRates

# A live step interrupts no answer of a stateless deployment, and those of moved key groups for milliseconds; policies that weigh gain
# against cost need a number above 0.
DOWNTIME_MS: Mapping[Kind, float] = {"scale_out": 1.0, "migrate": 1.0, "scale_in": 1.0, "balance": 1.0}


def sample(
    at_s: float,
    deployment: str,
    slots: Sequence[tuple[int, SlotRates | str]],
    node: str,
    node_use: float,
    room: int,
    most: int,
    groups: KeyGroups | None = None,
    key_groups: int = 0,
    prepared: int = 0,
) -> Sample:
    """One deployment on one node. A slot of which there are no figures is a replica without figures. key_groups: 0 without state.

    No more replicas would get work than lanes were open at once, since a lane stays in one slot: that bounds max_replicas, beside `most`.
    With state every lane is in all slots, and key groups bound it. `groups`: where they are, and their load, if that is known.
    prepared: slots that it is to have, for which a scale-out is prepared.
    """
    replicas = tuple(_replica(number, node, seen) for number, seen in slots)
    measured = [seen for _, seen in slots if not isinstance(seen, str)]
    lanes = sum(seen.lanes for seen in measured)
    responses = [seen.response_ms for seen in measured if seen.response_ms is not None]
    useful = key_groups or max(lanes, len(replicas), 1)
    operator = OperatorSample(deployment, replicas, max_replicas=min(most, useful), groups=groups, prepared=prepared)
    host = Host(node, _figure(node_use), room, {})
    return Sample(at_s, (operator,), (host,), _figure(max(responses)) if responses else None, dict(DOWNTIME_MS))


def _replica(number: int, node: str, seen: SlotRates | str) -> Replica:
    if isinstance(seen, str):
        return Replica(str(number), node, None, None, None, None, None)
    use, arrivals, answers, outputs, backlog, memory = map(
        _figure, (seen.use, seen.arrivals, seen.answers, seen.outputs, seen.backlog, seen.memory)
    )
    return Replica(str(number), node, use, arrivals, answers, outputs, backlog, 0.0, memory)


def _figure(value: float) -> float:
    """With as many digits as a measurement has: a journal keeps them all."""
    return float(f"{value:.5g}")
