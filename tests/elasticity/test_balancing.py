"""Balancing by the controller: a keyed operator is balanced before it scales out, swings are not followed, hopeless cases are named."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticity.balance.view import BalanceDecision, BalanceLimits, LoadView, decided, goal
from elasticity.scaling import balancing, journal, managed
from elasticity.scaling.balancing import BalanceMemory, BalanceSettings
from elasticity.scaling.journal import Controller, Header, JournalEntry
from elasticity.scaling.model import KeyGroups, OperatorSample, Plan, Replica, Sample
from tests.elasticity.applications import COSTS, node
from tests.support.selection import long

# The answers per second of a replica that is always busy; samples and their windows are 10 s apart and long.
CAPACITY, EVERY_S = 100.0, 10.0
Load = Callable[[float], Sequence[float]]


class Keyed:
    """An operator under a load in events/s by key group; steps are done at once, and groups are spread over replicas as by `udo scale`."""

    def __init__(self, groups: int, replicas: int) -> None:
        self.places = [g * replicas // groups for g in range(groups)]
        self.names = [str(r) for r in range(replicas)]
        self.backlog = np.zeros(replicas)

    def sample(self, at_s: float, per_s: Sequence[float]) -> Sample:
        """The sample after another interval under this load."""
        n = len(self.names)
        arrivals = np.bincount(self.places, weights=per_s, minlength=n)
        work = self.backlog + arrivals * EVERY_S
        done = np.minimum(work, CAPACITY * EVERY_S)
        self.backlog = work - done
        answers, use = done / EVERY_S, done / EVERY_S / CAPACITY
        replicas = tuple(
            Replica(name, "n0", float(use[i]), float(arrivals[i]), float(answers[i]), float(answers[i]), float(self.backlog[i]))
            for i, name in enumerate(self.names)
        )
        events = tuple(round(x * EVERY_S) for x in per_s)
        operator = OperatorSample("op", replicas, max_replicas=16, groups=KeyGroups(tuple(self.places), events))
        return Sample(at_s, (operator,), (node(),), None, COSTS)

    def carry_out(self, step: Plan) -> None:
        if step.kind == "balance":
            for group, to in step.groups:
                self.places[group] = self.names.index(to)
            return
        groups = len(self.places)
        self.names = [str(r) for r in range(step.replicas)]
        self.places = [g * step.replicas // groups for g in range(groups)]
        self.backlog = np.zeros(step.replicas)


def run(load: Load, seconds: float, groups: int = 32, replicas: int = 3, **own: Any) -> tuple[list[JournalEntry], Keyed]:
    """Carry out each decision at once under this load; return all entries of the journal, and the operator."""
    keyed = Keyed(groups, replicas)
    controller = Controller(Header("local", {"most": 6, **own}, 1))
    entries = []
    for i in range(int(seconds / EVERY_S)):
        entries.append(controller.decide(keyed.sample(i * EVERY_S, load(i * EVERY_S))))
        for step in entries[-1].decision.granted:
            keyed.carry_out(step)
    return entries, keyed


def steps(entries: Sequence[JournalEntry]) -> list[tuple[float, Plan]]:
    return [(e.sample.at_s, step) for e in entries for step in e.decision.granted]


def skewed(groups: int = 32, total: float = 150.0, hot: int = 4, share: float = 0.8) -> list[float]:
    """A load of which the first `hot` groups have this share."""
    return [total * share / hot if g < hot else total * (1 - share) / (groups - hot) for g in range(groups)]


def test_an_overloaded_replica_is_relieved_by_balancing_and_no_replica_is_added() -> None:
    """Three replicas could answer 300 events/s; the first one gets 120 of 150, in four groups: one replica has to serve two of them."""
    entries, keyed = run(lambda _: skewed(), 1800, policy="fuzzy", calm=10**6)
    kinds = [step.kind for _, step in steps(entries)]
    assert kinds and set(kinds) == {"balance"}
    arrivals = np.bincount(keyed.places, weights=skewed(), minlength=3)
    assert arrivals.max() <= 60 and not keyed.backlog.any()
    first_s, first = steps(entries)[0]
    assert first_s <= 20 and first.why.startswith("imbalance ") and first.replicas == 3


def test_when_balancing_is_not_enough_it_scales_out_after_it() -> None:
    entries, keyed = run(lambda _: skewed(total=400.0), 1800, policy="fuzzy", calm=10**6)
    kinds = [step.kind for _, step in steps(entries)]
    assert kinds[0] == "balance" and "scale_out" in kinds and len(keyed.names) > 4
    why = {reason for e in entries for p, reason in e.decision.declined if p.kind == "scale_out"}
    assert any("balanced" in reason for reason in why), why
    assert not keyed.backlog.any(), "in the end all of it is answered"


def test_a_group_above_a_replicas_share_is_named_and_nothing_moves_or_scales_in_vain() -> None:
    hot = [95.0] + [1.0] * 31
    entries, keyed = run(lambda _: hot, 3600, policy="accept_all")
    assert np.bincount(keyed.places, weights=hot).max() <= 95 * 1.1, "next to nothing is with it"
    late = [step for at_s, step in steps(entries) if at_s > 600]
    assert not late, late
    told = {reason for e in entries for p, reason in e.decision.declined if p.kind == "scale_out"}
    assert any("more replicas do not relieve" in reason and "key group 0 (75% of the events)" in reason for reason in told), told


@pytest.mark.parametrize("period_s", [20, long(60), long(120), long(240)])
def test_a_skew_that_swings_to_and_fro_is_not_followed(period_s: float) -> None:
    one, other = skewed(), skewed()[::-1]
    entries, _ = run(lambda at_s: one if at_s % period_s < period_s / 2 else other, 4 * 3600, policy="fuzzy", calm=10**6)
    assert [step for at_s, step in steps(entries) if at_s > 3600] == [], "after the first hour nothing moves any more"
    # A replica that is overloaded for a minute is scaled out, once.
    scaled = [step.kind for _, step in steps(entries) if step.kind in ("scale_out", "scale_in")]
    assert scaled == [] if period_s <= 60 else set(scaled) <= {"scale_out"} and len(scaled) <= 2


def test_a_skew_that_changes_and_stays_is_followed() -> None:
    one, other = skewed(), skewed()[::-1]
    entries, keyed = run(lambda at_s: one if at_s < 1800 else other, 3600, policy="fuzzy", calm=10**6)
    followed = [at_s for at_s, _ in steps(entries) if at_s >= 1800]
    assert followed and followed[0] - 1800 < 300
    assert np.bincount(keyed.places, weights=other, minlength=3).max() < 65


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["fuzzy", "ds2", "accept_all"]), st.sampled_from(["DLB-H", "DLB-L", "DLB-S", "LPTF"]))
def test_whatever_comes_no_group_moves_back_soon_and_steps_keep_their_distance(seed: int, policy: str, balance: str) -> None:
    rng = np.random.default_rng(seed)
    phases = [rng.dirichlet(np.full(16, 0.3)) * rng.uniform(20, 400) for _ in range(8)]
    entries, keyed = run(lambda at_s: phases[int(at_s // 90) % 8].tolist(), 1800, 16, 3, policy=policy, balance=balance)
    last: dict[int, float] = {}
    balanced_s = float("-inf")
    for at_s, step in steps(entries):
        assert 1 <= step.replicas <= 6
        if step.kind != "balance":
            continue
        assert at_s - balanced_s >= 30 and 0 < len(step.groups) <= 16
        balanced_s = at_s
        for group, _ in step.groups:
            assert at_s - last.get(group, float("-inf")) >= 300
            last[group] = at_s
    lines = [journal.first_line(Header("local", {"most": 6, "policy": policy, "balance": balance}, 1)), *map(journal.line, entries)]
    header, again = journal.read(lines)
    assert again == entries and list(journal.replay(header, again)) == []
    assert len(keyed.names) <= 6


def test_nothing_moves_while_a_replica_is_unmeasured_idle_or_balancing_is_off() -> None:
    keyed = Keyed(32, 3)
    seen = keyed.sample(0.0, skewed())
    [operator] = seen.operators
    lost = Replica("1", "n0", None, None, None, None, None)
    unmeasured = Sample(
        0.0, (OperatorSample("op", (operator.replicas[0], lost, operator.replicas[2]), groups=operator.groups),), seen.nodes, None, COSTS
    )
    assert not steps(run(lambda _: skewed(total=15.0), 300, least=3)[0])
    assert {step.kind for _, step in steps(run(lambda _: skewed(), 300, least=3, balance="")[0])} == {"scale_out"}
    controller = Controller(Header("local", {"most": 6, "balance_confirm": 1}, 1))
    assert [controller.decide(unmeasured).decision.granted for _ in range(5)] == [()] * 5


class KeyedOverNodes:
    """The same operator with slots on two nodes, each of which sees the figures of its own slots and the load of all key groups."""

    def __init__(self, groups: int, slots: Mapping[str, int], **own: Any) -> None:
        self.places = [g * sum(slots.values()) // groups for g in range(groups)]
        self.names = [f"{n}/{i}" for n, count in slots.items() for i in range(count)]
        self.controllers = {n: Controller(Header("managed", {"most": 6, "spread": managed.WITH_STATE, **own}, 1)) for n in slots}
        self.entries = dict[str, list[JournalEntry]]({n: [] for n in slots})

    def asked(self, at_s: float, per_s: Sequence[float]) -> list[tuple[str, Plan]]:
        """What the nodes ask for after another interval under this load; slot i of a node is replica i there."""
        load = np.bincount(self.places, weights=per_s, minlength=len(self.names)) / CAPACITY
        plans = list[tuple[str, Plan]]()
        for n, controller in self.controllers.items():
            own = [i for i, name in enumerate(self.names) if name.startswith(n)]
            others = [i for i in range(len(self.names)) if i not in own]
            at = {i: place for place, i in enumerate((*own, *others))}
            replicas = tuple(
                Replica(name_of(self.names[i]), "n0", min(float(load[i]), 1.0), *[float(load[i]) * CAPACITY] * 3, 0.0) for i in own
            )
            events = tuple(round(x * EVERY_S) for x in per_s)
            groups = KeyGroups(tuple(at[i] for i in self.places), events, tuple(self.names[i] for i in others))
            seen = Sample(at_s, (OperatorSample("op", replicas, max_replicas=16, groups=groups),), (node(),), None, COSTS)
            self.entries[n].append(controller.decide(seen))
            plans += [(n, p) for p in managed.asked(self.entries[n][-1].decision) if p.kind == "balance"]
        return plans

    def carry_out(self, n: str, step: Plan) -> None:
        for group, to in step.groups:
            assert self.names[self.places[group]].startswith(n), "a node moves key groups of its own"
            self.places[group] = self.names.index(to if "/" in to else f"{n}/{to}")


def name_of(slot: str) -> str:
    return slot.partition("/")[2]


def test_over_nodes_each_relieves_its_own_slots_until_the_load_is_even() -> None:
    over, moved, load = KeyedOverNodes(32, {"a": 2, "b": 1}), list[tuple[float, str, Plan]](), skewed()
    for at_s in range(0, 3600, 10):
        asked = over.asked(at_s, load)
        assert len(asked) < 2, "the node of the most loaded slot alone asks"
        for n, step in asked:
            over.carry_out(n, step)
            moved.append((at_s, n, step))
    arrivals = np.bincount(over.places, weights=load, minlength=3)
    assert arrivals.max() <= 60, "one of three has to serve two of the four hot groups"
    assert {n for _, n, _ in moved} == {"a"} and {to for _, _, step in moved for _, to in step.groups} >= {"b/0"}
    assert all(len({to for _, to in step.groups}) == 1 for _, _, step in moved), "from one slot to one other"
    groups = [group for _, _, step in moved for group, _ in step.groups]
    assert len(groups) == len(set(groups)) and moved[-1][0] < 400
    for n, entries in over.entries.items():
        lines = [journal.first_line(Header("managed", {"most": 6, "spread": managed.WITH_STATE}, 1)), *map(journal.line, entries)]
        header, again = journal.read(lines)
        assert again == entries and list(journal.replay(header, again)) == [], n


def test_over_nodes_a_skew_that_swings_between_them_is_not_followed() -> None:
    one, other, moved = skewed(), skewed()[::-1], list[float]()
    over = KeyedOverNodes(32, {"a": 2, "b": 1})
    for at_s in range(0, 2 * 3600, 10):
        for n, step in over.asked(at_s, one if at_s % 60 < 30 else other)[:1]:
            over.carry_out(n, step)
            moved.append(at_s)
    assert [at_s for at_s in moved if at_s > 3600] == []


def test_over_nodes_a_hot_group_is_named_everywhere_and_counts_against_a_scale_out_where_it_is() -> None:
    over = KeyedOverNodes(32, {"a": 1, "b": 1})
    assert {n for at_s in range(0, 100, 10) for n, _ in over.asked(at_s, [0.5] * 31 + [95.0])} == {"b"}, "its other groups may move"
    found = {}
    for n, entries in over.entries.items():
        seen = entries[-1].sample
        found[n], _ = balancing.propose(seen, seen.operators[0], BalanceMemory(), BalanceSettings())
    assert all("key group 31" in proposal.too_hot for proposal in found.values())
    assert {n: proposal.hot_replica for n, proposal in found.items()} == {"a": None, "b": 0}


def to_the_last(view: LoadView, limits: BalanceLimits) -> BalanceDecision:
    """A user's own policy: it moves the most loaded key to the last engine."""
    keys_map = view.keys_map.copy()
    keys_map[int(view.keys_load.argmax())] = view.engines - 1
    return decided(view, keys_map, goal(view, limits))


def test_a_policy_of_ones_own_is_found_by_module_and_function() -> None:
    entries, _ = run(lambda _: skewed(), 300, policy="fuzzy", balance=f"{__name__}:to_the_last")
    moves = [step.groups for _, step in steps(entries) if step.kind == "balance"]
    assert moves and all(to == "2" for groups in moves for _, to in groups)
    assert all(len(groups) == 1 for groups in moves)


def test_chance_of_a_policy_changes_nothing() -> None:
    random.seed(1)
    first = steps(run(lambda _: skewed(), 600)[0])
    random.seed(2)
    assert steps(run(lambda _: skewed(), 600)[0]) == first
