"""Balance a keyed operator before it scales: the key groups to move between its replicas now, by a named balancing policy.

Paper 2's policies look at one window. This module adds the guards that a live system needs: nothing moves unless a replica has enough
to do and an imbalance lasts; a group that moved stays for a while; and no move may worsen the balance over the longer past: a load that
swings back and forth within it is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from elasticity import policies
from elasticity.balance.view import CHANCE_SIGMAS, THETA_PERCENT, BalanceDecision, BalanceLimits, LoadView, eng_load, imb_score
from elasticity.scaling import guards
from elasticity.scaling.model import GAIN, KeyGroups, OperatorSample, Plan, Sample

# A peak further from the best possible than twice this is worth a step (BalanceLimits.slack).
SLACK = 0.05
_NAMED = 3
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class BalanceSettings:
    """The settings of balancing, part of those of the policies that balance."""

    # A balancing policy, '' for none; the imbScore that it may leave; see BalanceLimits.chance_sigmas.
    balance: str = "DLB-H"
    theta: float = THETA_PERCENT
    balance_sigmas: float = CHANCE_SIGMAS
    # Share of the time; if the busiest replica is used less, it needs no relief, and nothing moves.
    balance_use: float = 0.3
    # Samples in a row in which groups would move, and seconds between two steps: measurements before a step tell nothing about the next.
    balance_confirm: int = 2
    balance_s: float = 30.0
    # Most groups per step: its pause is some milliseconds, and the next step continues.
    balance_groups: int = 16
    # No step in the other direction comes sooner: swings of the load shorter than this are not followed down and up again. A group that
    # moved stays for this long, and the balance over this past must not get worse.
    reverse_s: float = 300.0


@dataclass(frozen=True)
class BalanceMemory:
    """The state of one operator. mean: events/window of each group over about the last reverse_s, times `weight`; moved: when each group
    moved last; replicas: the names of all replicas, and that of each group's replica, as last seen over nodes."""

    mean: Floats | None = None
    weight: float = 0.0
    at_s: float | None = None
    due: int = 0
    last_s: float | None = None
    moved: Mapping[int, float] = field(default_factory=dict)
    replicas: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class BalanceProposal:
    """The move to make, if any. too_hot: text that names the key groups above a replica's share, which no move can help, or ''.
    hot_replica: the place of the replica with the hottest of them."""

    plan: Plan | None = None
    too_hot: str = ""
    hot_replica: int | None = None


def propose(
    sample: Sample, operator: OperatorSample, memory: BalanceMemory, settings: BalanceSettings
) -> tuple[BalanceProposal, BalanceMemory]:
    """The balancing policy's move, if one is due, and the memory with this sample; `granted` records that it is made.

    Over nodes that is seen by itself, since others decide whether it is made, and move groups as well. There a move is from one replica to
    one other, and comes from the node of the former: all nodes have the same figures, so one of them proposes at a time.
    """
    seen = operator.groups
    if not settings.balance or seen is None or guards.unmeasured(operator):
        return BalanceProposal(), replace(memory, due=0)
    memory = _remembered(memory, np.array(seen.events, float), sample.at_s, settings.reverse_s)
    names = (*(r.name for r in operator.replicas), *seen.elsewhere)
    if seen.elsewhere:
        memory = _seen_to_move(memory, names, seen.places, sample.at_s, settings.reverse_s)
    if len(names) < 2 or not sum(seen.events):
        return BalanceProposal(), replace(memory, due=0)
    decision, keys = _decided(seen, len(names), sample.at_s, memory, settings)
    hot = _named(decision, seen)
    hottest = seen.places[decision.too_hot[0]] if hot else len(operator.replicas)
    nothing = BalanceProposal(too_hot=hot, hot_replica=hottest if hottest < len(operator.replicas) else None)
    use = max(r.use or 0.0 for r in operator.replicas)
    own = all(seen.places[g] < len(operator.replicas) for g in keys)
    if not keys or not own or (use < settings.balance_use and guards.backlog_s(operator) < guards.BACKLOG_S):
        return nothing, replace(memory, due=0)
    memory = replace(memory, due=memory.due + 1)
    if memory.due < settings.balance_confirm or (memory.last_s is not None and sample.at_s - memory.last_s < settings.balance_s):
        return nothing, memory
    return replace(nothing, plan=_plan(sample, operator, decision, [(g, names[int(decision.keys_map[g])]) for g in keys], hot)), memory


def granted(memory: BalanceMemory, step: Plan, at_s: float, stay_s: float) -> BalanceMemory:
    """The memory after that step is granted."""
    return _moved(memory, (group for group, _ in step.groups), at_s, stay_s)


def _moved(memory: BalanceMemory, groups: Iterable[int], at_s: float, stay_s: float) -> BalanceMemory:
    stays = {group: when for group, when in memory.moved.items() if at_s - when < stay_s}
    return replace(memory, due=0, last_s=at_s, moved={**stays, **dict.fromkeys(groups, at_s)})


def _seen_to_move(memory: BalanceMemory, names: tuple[str, ...], places: tuple[int, ...], at_s: float, stay_s: float) -> BalanceMemory:
    """The memory with the groups that have another replica than in the last sample. What moves to a new replica may move again at once."""
    known, now = memory.replicas, (names, tuple(names[place] for place in places))
    memory = replace(memory, replicas=now)
    if set(known[0]) != set(names) or known[1] == now[1]:
        return memory
    return _moved(memory, (g for g, (was, name) in enumerate(zip(known[1], now[1], strict=True)) if was != name), at_s, stay_s)


def _remembered(memory: BalanceMemory, events: Floats, at_s: float, stay_s: float) -> BalanceMemory:
    """The memory with these loads in its mean, which decays with time."""
    passed_s = 0.0 if memory.at_s is None else max(at_s - memory.at_s, 0.0)
    kept = math.exp(-passed_s / stay_s) if stay_s > 0 else 0.0
    if memory.mean is None or len(memory.mean) != len(events):
        return replace(memory, mean=events, weight=1.0, at_s=at_s)
    return replace(memory, mean=memory.mean * kept + events, weight=memory.weight * kept + 1.0, at_s=at_s)


def _decided(
    seen: KeyGroups, replicas: int, at_s: float, memory: BalanceMemory, settings: BalanceSettings
) -> tuple[BalanceDecision, list[int]]:
    """The policy's decision, and those of its groups that may move; none if they alone would not help."""
    places, events = np.array(seen.places), np.array(seen.events)
    staying = [g for g, when in memory.moved.items() if at_s - when < settings.reverse_s and g < len(places)]
    held = None
    if staying:  # a group that weighs more than its load does not move
        held = np.zeros(len(places))
        held[staying] = np.inf
    limits = BalanceLimits(
        settings.theta, SLACK, settings.balance_groups, events_per_byte=1.0 if staying else 0.0, chance_sigmas=settings.balance_sigmas
    )
    decision: BalanceDecision = policies.find("balance", settings.balance)(LoadView(places, events, replicas, held), limits)
    keys = [int(g) for g in decision.keys if events[g] and g not in staying]
    if seen.elsewhere:
        keys = _of_one_pair(keys, places, decision, events)
    keys = sorted(sorted(keys, key=lambda g: (-int(events[g]), g))[: settings.balance_groups])
    after = places.copy()
    after[keys] = decision.keys_map[keys]
    if not _lower(places, after, events.astype(float), replicas):
        return decision, []
    assert memory.mean is not None
    past = memory.mean / memory.weight
    worse = imb_score(eng_load(after, past, replicas)) > imb_score(eng_load(places, past, replicas))
    return decision, [] if worse else keys


def _of_one_pair(keys: list[int], places: Ints, decision: BalanceDecision, events: Ints) -> list[int]:
    """Those of the groups that leave the most loaded replica for the one that gets most of it."""
    load = np.bincount(places, weights=events)
    source = max((int(places[g]) for g in keys), key=lambda place: (load[place], -place), default=-1)
    leaving = dict[int, list[int]]()
    for g in keys:
        if places[g] == source:
            leaving.setdefault(int(decision.keys_map[g]), []).append(g)
    return max(leaving.values(), key=lambda some: int(events[some].sum()), default=[])


def _lower(before: npt.NDArray[np.integer], after: npt.NDArray[np.integer], events: Floats, replicas: int) -> bool:
    return imb_score(eng_load(after, events, replicas)) < imb_score(eng_load(before, events, replicas))


def _named(decision: BalanceDecision, seen: KeyGroups) -> str:
    """Text that names the key groups that alone rule out the threshold, hottest first."""
    total = sum(seen.events)
    shown = [f"{g} ({seen.events[g] / total:.0%} of the events)" for g in decision.too_hot[:_NAMED]]
    more = f" and {len(decision.too_hot) - _NAMED} more" if len(decision.too_hot) > _NAMED else ""
    return f"key group {', '.join(shown)}{more}" if shown else ""


def _plan(sample: Sample, operator: OperatorSample, decision: BalanceDecision, moves: list[tuple[int, str]], hot: str) -> Plan:
    why = f"imbalance {decision.before_percent:.0f} %, {len(moves)} key group{'s' * (len(moves) != 1)} move"
    if hot:
        why += f"; no move helps {hot}"
    cost_ms = sample.downtime_ms.get("balance", 0.0)
    return Plan(operator.name, "balance", len(operator.replicas), GAIN["balance"], cost_ms, why, groups=tuple(moves))
