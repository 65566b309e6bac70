"""The Operator Manager of an application's deployment: its requests, and the few steps that it takes without asking."""

from __future__ import annotations

import random
from dataclasses import replace

from elasticity.scaling import managed
from elasticity.scaling.managed import ADVICE, ASKED, LAST, ManagedMemory, ManagedSettings
from elasticity.scaling.model import Host, KeyGroups, Kind, OperatorSample, Plan, Replica, Sample, ScalingDecision

SETTINGS = ManagedSettings(least=1, most=4, calm_s=20.0, reverse_s=60.0)


def sample(at_s: float, *uses: float | None, node_use: float = 0.1, groups: KeyGroups | None = None) -> Sample:
    replicas = tuple(
        Replica(str(i), "a", use, *((100.0, 100.0, 100.0, 0.0) if use is not None else (None,) * 4)) for i, use in enumerate(uses)
    )
    nodes = (Host("a", node_use, 10, {"b": 1.0}), Host("b", 0.1, 10, {}))
    costs: dict[Kind, float] = {"scale_out": 1.0, "migrate": 1.0, "scale_in": 1.0, "balance": 1.0}
    return Sample(at_s, (OperatorSample("d", replicas, max_replicas=4, groups=groups),), nodes, None, costs)


def decide(s: Sample, memory: ManagedMemory | None = None, **settings: float) -> tuple[ScalingDecision, ManagedMemory]:
    return managed.managed(s, memory, random.Random(1), replace(SETTINGS, **settings))  # type: ignore[arg-type]


def asks(decision: ScalingDecision) -> list[tuple[str, int]]:
    return [(p.kind, p.replicas) for p in managed.asked(decision)]


def test_a_busy_replica_is_asked_about_and_nothing_is_done() -> None:
    decision, _ = decide(sample(0, 0.9))
    assert decision.granted == () and asks(decision) == [("scale_out", 2)]
    [ask] = managed.asked(decision)
    busier = managed.asked(decide(sample(0, 0.95))[0])[0]
    assert 3 < ask.gain < busier.gain < 4, "more gain the busier it is, below the next kind"
    assert ask.target is None and ask.cost_ms == 1.0


def test_fewer_are_asked_for_once_it_has_been_calm_and_never_below_the_least() -> None:
    decision, memory = decide(sample(0, 0.1, 0.1))
    assert asks(decision) == [] and [why for _, why in decision.declined] == ["not calm for long enough"]
    decision, memory = decide(sample(20, 0.1, 0.1), memory)
    assert asks(decision) == [("scale_in", 1)]
    decision, _ = decide(sample(40, 0.1, 0.1), memory, least=2)
    assert asks(decision) == []


def test_a_step_back_is_counted_from_what_was_seen_to_have_changed() -> None:
    _, memory = decide(sample(0, 0.9))
    _, memory = decide(sample(10, 0.3, 0.3), memory)  # the request was granted
    for at_s in (30.0, 50.0, 69.0):
        decision, memory = decide(sample(at_s, 0.1, 0.1), memory)
        assert asks(decision) == []
    decision, memory = decide(sample(71, 0.1, 0.1), memory)
    assert asks(decision) == [("scale_in", 1)]
    asked_only = None
    for at_s in (0.0, 10.0, 20.0):  # requested, and never granted
        _, asked_only = decide(sample(at_s, 0.9, 0.1), asked_only)
    _, asked_only = decide(sample(30, 0.1, 0.1), asked_only)
    assert asks(decide(sample(50, 0.1, 0.1), asked_only)[0]) == [("scale_in", 1)], "what only was proposed holds nothing up"


def test_the_bounds_are_brought_about_without_asking() -> None:
    for uses, granted in (((0.9,), ("scale_out", 2)), ((), ("scale_out", 2))):
        decision, _ = decide(sample(0, *uses), least=2)
        assert [(p.kind, p.replicas) for p in decision.granted] == [granted]
    decision, _ = decide(sample(0, 0.9, 0.9, 0.9), most=2)
    assert [(p.kind, p.replicas) for p in decision.granted] == [("scale_in", 2)] and asks(decision) == []


def test_an_overloaded_node_is_told_of_as_advice_with_a_neighbour_and_missing_figures_ask_for_nothing() -> None:
    decision, _ = decide(sample(0, 0.5, node_use=0.9))
    [(advice, why)] = decision.declined
    assert (advice.kind, advice.target, why) == ("migrate", "b", ADVICE) and asks(decision) == []
    decision, _ = decide(sample(0, None, 0.9))
    assert decision.granted == decision.declined == ()


def test_over_nodes_nothing_is_done_a_move_is_asked_for_and_the_last_slot_stays() -> None:
    decision, _ = decide(sample(0, 0.9, 0.9, node_use=0.9), spread=1, least=3)
    assert decision.granted == () and asks(decision) == [("migrate", 2), ("scale_out", 3)]
    assert {p.target for p in managed.asked(decision)} == {"b"}
    decision, _ = decide(sample(0, 0.5, node_use=0.9), spread=1)
    assert [(p.kind, why) for p, why in decision.declined] == [("migrate", LAST)]


def test_over_nodes_with_state_the_last_slot_may_move_and_a_scale_out_names_the_slot_that_shares_its_keys() -> None:
    decision, _ = decide(sample(0, 0.5, node_use=0.9), spread=2)
    assert asks(decision) == [("migrate", 1)]
    decision, _ = decide(sample(0, 0.3, 0.9), spread=2)
    [ask] = managed.asked(decision)
    assert (ask.kind, ask.replica, ask.target) == ("scale_out", "1", "b")
    [ask] = managed.asked(decide(sample(0, 0.3, 0.9), spread=1)[0])
    assert ask.replica is None, "without state lanes are shared out anew"


def test_over_nodes_balancing_is_asked_for_again_until_it_is_seen_to_have_been_done() -> None:
    places, events = (0, 0, 0, 1, 1), (400, 300, 300, 10, 10)
    here, memory = KeyGroups(places, events, ("b/0",)), None
    for at_s, expected in ((0.0, []), (10.0, [("balance", 1)]), (20.0, [("balance", 1)])):
        decision, memory = decide(sample(at_s, 0.6, groups=here), memory, spread=2)
        assert decision.granted == () and asks(decision) == expected
    [ask] = managed.asked(decision)
    assert ask.groups == ((0, "b/0"),) and ask.gain > 3.99, "it comes before steps that take a further replica"
    done = replace(here, places=(1, 0, 0, 1, 1))
    for at_s in (30.0, 40.0, 50.0):
        decision, memory = decide(sample(at_s, 0.6, groups=done), memory, spread=2)
        assert asks(decision) == []
    there = KeyGroups((1, 1, 0, 0, 0), events, ("a/0",))  # the same as node b sees it, whose slot is the less loaded one
    _, other = decide(sample(0, 0.4, groups=there), None, spread=2)
    assert asks(decide(sample(10, 0.4, groups=there), other, spread=2)[0]) == []


def test_keys_are_balanced_first_without_asking_and_more_slots_are_asked_for_when_that_was_not_enough() -> None:
    places, events = tuple(i % 2 for i in range(8)), (900, 10, 900, 10, 900, 10, 10, 10)
    skewed, memory, kinds = KeyGroups(places, events), None, list[tuple[list[str], list[tuple[str, int]]]]()
    for at_s in (0.0, 10.0):
        decision, memory = decide(sample(at_s, 0.95, 0.1, groups=skewed), memory)
        kinds.append(([p.kind for p in decision.granted], asks(decision)))
    assert kinds == [([], [("scale_out", 3)]), (["balance"], [])]
    even = replace(skewed, events=(100,) * 8)
    decision, memory = decide(sample(50, 0.95, 0.95, groups=even), memory)
    assert asks(decision) == [("scale_out", 3)] and ASKED in [why for _, why in decision.declined]
    assert isinstance(decision.declined[0][0], Plan)
