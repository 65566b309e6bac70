"""Plans of moves: towards checkpoints, never into overload, in rounds that stay within their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticity.allocation.baselines import allocate_random
from elasticity.allocation.costs import Costs, Protocol
from elasticity.allocation.fluid import Bounds, Order, rounds
from elasticity.allocation.history import Floats, Ints
from elasticity.allocation.planning import Move, Planner, apply, pair, relieve, usable
from elasticity.allocation.values import node_loads
from udo_protocol.errors import UsageError

LIMIT = 0.8
Cluster = tuple[Floats, Ints, Ints, int]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Loads, owners, one checkpoint for each group, and the number of nodes."""
    groups, nodes = draw(st.integers(1, 40)), draw(st.integers(2, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    owner = rng.integers(0, nodes, groups)
    return rng.random(groups) * draw(st.sampled_from([0.1, 0.3, 1.0])), owner, allocate_random(owner, nodes, rng), nodes


@pytest.mark.parametrize("planner", [relieve, pair])
@given(clusters())
@settings(deadline=None)
def test_a_plan_takes_from_overloaded_nodes_and_overloads_none(planner: Planner, cluster: Cluster) -> None:
    loads, owner, placement, nodes = cluster
    before = node_loads(loads, owner, nodes)

    moves = planner(loads, owner, placement, LIMIT, nodes)

    assert len({m.group for m in moves}) == len(moves)
    assert all(owner[m.group] == m.source != m.target and before[m.source] > LIMIT for m in moves)
    assert all(m.assisted == (m.target in placement[m.group]) for m in moves)
    after = node_loads(loads, apply(moves, owner, placement)[0], nodes)
    assert (after <= np.maximum(before, LIMIT) + 1e-9).all()


@given(clusters())
@settings(deadline=None)
def test_a_node_stays_overloaded_only_if_no_node_can_take_any_of_its_groups(cluster: Cluster) -> None:
    loads, owner, placement, nodes = cluster

    owner, _ = apply(relieve(loads, owner, placement, LIMIT, nodes), owner, placement)

    load = node_loads(loads, owner, nodes)
    for node in np.flatnonzero(load > LIMIT + 1e-9):
        others = np.delete(load, node)
        assert (others.min() + loads[owner == node] > LIMIT - 1e-9).all()


def test_load_moves_to_where_a_checkpoint_lies_even_if_another_node_has_more_room() -> None:
    # given node 0 overloaded; only group 1 of its groups has a checkpoint on a node with room
    loads, owner = np.array([0.5, 0.4, 0.7, 0.3]), np.array([0, 0, 1, 2])
    placement = np.array([[1], [2], [2], [0]])

    assert relieve(loads, owner, placement, LIMIT, 4) == (Move(1, 0, 2, assisted=True),)
    assert usable(loads, owner, placement, LIMIT, 4) == (1, 2)


def test_the_smallest_group_that_ends_the_overload_goes() -> None:
    loads, owner, placement = np.array([0.4, 0.25, 0.3, 0.1]), np.zeros(4, int), np.ones((4, 1), int)

    assert relieve(loads, owner, placement, LIMIT, 3) == (Move(1, 0, 1, assisted=True),)


def test_a_pair_exchanges_nothing_with_others() -> None:
    # given nodes 0 and 1 overloaded, 2 and 3 with room; group 0 has its checkpoint on node 3, which is not the partner of its node
    loads, owner = np.array([0.5, 0.6, 0.4, 0.5, 0.1, 0.05]), np.array([0, 0, 1, 1, 3, 2])
    placement = np.array([[3], [1], [0], [3], [0], [0]])

    assert pair(loads, owner, placement, LIMIT, 4) == (Move(0, 0, 2, assisted=False), Move(3, 1, 3, assisted=True))


def test_an_assisted_move_swaps_group_and_checkpoint_and_a_direct_one_leaves_the_checkpoint() -> None:
    owner, placement = apply((Move(0, 0, 1, True), Move(1, 0, 1, False)), np.array([0, 0, 2]), np.array([[1], [2], [0]]))

    assert owner.tolist() == [1, 1, 2]
    assert placement.tolist() == [[0], [2], [0]]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1000)), max_size=40),
    st.integers(1, 5),
    st.sampled_from([100.0, 1000.0, math.inf]),
    st.sampled_from(Order),
)
def test_rounds_keep_their_bounds_and_lose_no_move(work: list[tuple[float, float]], at_once: int, round_bytes: float, order: Order) -> None:
    moves = [Move(i, 0, 1, False) for i in range(len(work))]
    loads, sizes = [w[0] for w in work], [w[1] for w in work]

    plan = rounds(moves, loads, sizes, Bounds(at_once, round_bytes, bytes_per_s=50.0), order)

    in_order = [m.group for r in plan for m in r.moves]
    assert sorted(in_order) == list(range(len(work)))
    ranks = {Order.HOTTEST: [-x for x in loads], Order.SMALLEST: sizes, Order.PLAN: list(range(len(work)))}[order]
    assert [ranks[g] for g in in_order] == sorted(ranks)
    assert all(len(r.moves) == 1 or sum(sizes[m.group] for m in r.moves) <= round_bytes for r in plan)
    assert all(1 <= len(r.moves) <= at_once for r in plan)
    sent = 0.0
    for r in plan:
        assert r.earliest_s == pytest.approx(sent / 50)
        sent += sum(sizes[m.group] for m in r.moves)


def test_bounds_of_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 move under way"):
        Bounds(moves_under_way=0)
    with pytest.raises(UsageError, match="more than 0 bytes"):
        Bounds(bytes_per_s=0)


def test_direct_waits_for_state_cpa_for_the_replay_and_cpal_for_neither() -> None:
    costs, small, large = Costs(), (1e6, 1e3), (1e9, 1e6)

    def latency(protocol: Protocol) -> list[float]:
        return [costs.latency_ms(protocol, state, replay) for state in (small[0], large[0]) for replay in (small[1], large[1])]

    direct, cpa, cpal = latency(Protocol.DIRECT), latency(Protocol.CPA), latency(Protocol.CPAL)
    assert direct[0] == direct[1] < direct[2] == direct[3]
    assert cpa[0] == cpa[2] < cpa[1] == cpa[3]
    assert len(set(cpal)) == 1
    assert all(costs.completion_ms(Protocol.CPAL, *x) >= costs.completion_ms(Protocol.CPA, *x) for x in (small, large))
    assert costs.moved_bytes(Protocol.DIRECT, *large) == large[0]
