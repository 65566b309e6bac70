"""The two managers of EDF against the rules of paper 5, section 3."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from elasticity.scaling.edf import (
    Bucket,
    EdfMemory,
    OperatorManagerSettings,
    accept_all,
    application_manager,
    edf,
    near,
    operator_manager,
)
from elasticity.scaling.model import Plan
from tests.elasticity.applications import COSTS, decide, kinds, node, operator, sample

RULES = OperatorManagerSettings(u_max=0.7, s_out=0.7, c=0.75)


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)


def plans(o: object, *nodes: object, seed: int = 1) -> list[Plan]:
    return operator_manager(sample(o, nodes=nodes), o, rng(seed), RULES)  # type: ignore[arg-type]


def test_a_replica_used_more_than_s_out_asks_for_one_more() -> None:
    assert kinds(plans(operator(uses=(0.2, 0.71)))) == [("op", "scale_out", 3)]
    assert plans(operator(uses=(0.7, 0.7))) == []


def test_replicas_that_the_others_could_do_without_are_given_back() -> None:
    # c · S_out = 0.525: of three replicas used 0.34, two would be used 0.51
    assert kinds(plans(operator(uses=(0.34, 0.34, 0.34)))) == [("op", "scale_in", 2)]
    assert plans(operator(uses=(0.36, 0.36, 0.36))) == []
    assert plans(operator(uses=(0.0,))) == []  # the last replica stays


def test_one_of_the_two_busiest_goes() -> None:
    o = operator(uses=(0.1, 0.2, 0.05, 0.3))
    assert {plans(o, seed=s)[0].replica for s in range(40)} == {"op-1", "op-3"}


def test_a_node_above_u_max_is_left_by_one_replica() -> None:
    full, other = node(use=0.71, n1=1.0), node("n1", n0=1.0)
    [p] = plans(operator(uses=(0.6, 0.6)), full, other)
    assert (p.kind, p.target, p.replicas) == ("migrate", "n1", 2)
    assert p.replica in ("op-0", "op-1")
    assert plans(operator(uses=(0.6, 0.6)), node(use=0.71, n1=1.0), node("n1", room=0, n0=1.0)) == []


def test_the_closer_neighbour_is_the_likelier_and_one_without_room_is_left_out() -> None:
    nodes = {n.name: n for n in (node(a=1.0, b=3.0, c=0.1), node("a"), node("b"), node("c", room=0))}
    chance = rng()
    drawn = Counter(near(nodes["n0"], nodes, chance) for _ in range(4000))
    assert drawn.keys() == {"a", "b"}
    assert drawn["a"] / drawn["b"] == pytest.approx(3, rel=0.15)


def test_accept_all_grants_what_every_operator_asks_for() -> None:
    decision, _ = decide(accept_all, sample(operator("a", (0.9,)), operator("b", (0.1, 0.1), upstream="a")))
    assert kinds(decision.granted) == [("a", "scale_out", 2), ("b", "scale_in", 1)]


def a_plan(name: str, gain: float, cost_ms: float) -> Plan:
    return Plan(name, "scale_out", 2, gain, cost_ms, "")


def test_the_best_gain_for_its_cost_gets_the_token() -> None:
    proposals = [a_plan("cheap", 1, 10), a_plan("dear", 3, 100), a_plan("best", 2, 10)]
    granted, declined, bucket = application_manager(proposals, Bucket(tokens=2), 0.0, None)
    assert [p.operator for p in granted] == ["best", "cheap"]
    assert [(p.operator, why) for p, why in declined] == [("dear", "no token")]
    assert bucket.tokens == 0


def test_gains_are_ordered_scale_out_migration_scale_in() -> None:
    full = node(use=0.9, n1=1.0), node("n1", n0=1.0)
    decision, _ = decide(accept_all, sample(operator(uses=(0.9,)), nodes=full))
    gains = {p.kind: p.gain for p in decision.granted}
    assert gains["scale_out"] > gains["migrate"]
    decision, _ = decide(accept_all, sample(operator(uses=(0.1, 0.1))))
    assert gains["migrate"] > decision.granted[0].gain


def rounds(response_ms: float, until_s: float, **settings: float) -> list[float]:
    """The times at which a step is granted to an operator that asks for more every 30 s."""
    memory, granted, chance = None, [], rng()
    for at_s in range(0, int(until_s) + 1, 30):
        decision, memory = decide(edf, sample(operator(uses=(0.9,)), at_s=at_s, response_ms=response_ms), memory, chance, **settings)
        granted += [at_s] * len(decision.granted)
    return granted


def test_a_token_comes_each_minute_while_the_response_time_is_above_beta_r_max() -> None:
    assert rounds(151, 240, beta=0.75) == [60, 120, 180, 240]
    assert rounds(149, 240, beta=0.75) == []
    assert rounds(149, 120, beta=0.5) == [60, 120]


def test_tokens_do_not_pile_up_beyond_the_capacity() -> None:
    quiet = sample(operator(uses=(0.6,)), response_ms=190)
    memory = None
    for at_s in range(0, 601, 30):
        _, memory = decide(edf, sample(*quiet.operators, at_s=at_s, response_ms=190), memory)
    assert memory is not None
    assert memory.bucket.tokens == 1


def test_the_second_objective_bounds_the_downtime_of_an_hour() -> None:
    # 50 ms per step, and a share of 1/24,000 of 3,600 s = 150 ms: three steps an hour
    granted = rounds(190, 7200, downtime_share=1 / 24_000)
    assert granted[:3] == [60, 120, 180]
    assert granted[3] >= 60 + 3600
    assert len(granted) == 6


def test_with_idle_tokens_replicas_are_given_back_although_the_response_time_is_good() -> None:
    def shrinks(**settings: float) -> int:
        memory, n = None, 0
        for at_s in range(0, 3601, 30):
            decision, memory = decide(edf, sample(operator(uses=(0.1, 0.1, 0.1)), at_s=at_s), memory, **settings)
            n += len(decision.granted)
        return n

    assert shrinks() == 0  # as in the paper
    assert shrinks(idle_token_s=600) > 0


def test_memory_is_never_changed_in_place() -> None:
    before = EdfMemory(Bucket(tokens=1))
    decide(edf, sample(operator(uses=(0.9,)), response_ms=500), before)
    assert before == EdfMemory(Bucket(tokens=1))
    assert set(COSTS) == {"scale_out", "migrate", "scale_in"}
