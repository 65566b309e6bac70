"""Checkpoint allocation: its constraints always hold, it is the paper's algorithm, and it comes close to the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticity.allocation.baselines import allocate_even, allocate_random
from elasticity.allocation.greedy import allocate, fair_limit
from elasticity.allocation.history import Floats, Ints, LoadHistory
from elasticity.allocation.reallocation import carried_load, reallocate
from elasticity.allocation.refine import refine
from elasticity.allocation.values import checkpoint_values, score
from tests.elasticity.literal import allocate_literally, optimal_score
from tests.support.optimum import gaps_to_optimum
from tests.support.seeds import examples
from udo_protocol.errors import UsageError

FAIRNESS = st.sampled_from([0.0, 0.1, 0.5, 1.0, math.inf])


@st.composite
def jobs(draw: st.DrawFn, groups: int = 24, nodes: int = 7) -> tuple[Floats, Ints, int, int]:
    """Samples, owners, number of nodes and copies. Some loads are constant and some equal, so that values tie; nodes may be empty."""
    g, n = draw(st.integers(1, groups)), draw(st.integers(2, nodes))
    copies = draw(st.integers(1, min(2, n - 1)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    common = rng.random((3, 20))
    shape = draw(st.sampled_from(["mixed", "equal", "integers"]))
    samples = rng.random((g, 3)) @ common + rng.random((g, 1))
    if shape == "integers":
        samples = rng.integers(0, 3, (g, 4)).astype(float)
    elif shape == "equal":
        samples = samples[rng.integers(0, g, g)]
    samples[rng.random(g) < 0.2] = 1.0
    return samples.astype(np.float32), rng.integers(0, n, g), n, copies


def assert_apart(placement: Ints, owner: Ints) -> None:
    """Check constraint 1."""
    assert placement.min() >= 0
    assert not (placement == owner[:, None]).any()
    assert all(len(set(row)) == len(row) for row in placement.tolist())


@given(jobs(), FAIRNESS)
@settings(max_examples=examples(300), deadline=None)
def test_it_is_the_papers_algorithm(job: tuple[Floats, Ints, int, int], fairness: float) -> None:
    samples, owner, nodes, copies = job
    values, load = checkpoint_values(samples, owner, nodes), samples.mean(axis=1).astype(np.float64)

    placement = allocate(values, load, copies=copies, fairness=fairness)

    assert placement.tolist() == allocate_literally(values, load, copies, fair_limit(load, copies, nodes, fairness)).tolist()


@given(jobs(groups=60, nodes=12), FAIRNESS)
@settings(deadline=None)
def test_no_checkpoint_lies_beside_its_group_or_its_twin(job: tuple[Floats, Ints, int, int], fairness: float) -> None:
    samples, owner, nodes, copies = job
    load, rng = samples.mean(axis=1), np.random.default_rng(1)

    for placement in (
        allocate(checkpoint_values(samples, owner, nodes), load, copies=copies, fairness=fairness),
        allocate_random(owner, nodes, rng, copies=copies),
        allocate_even(owner, nodes, rng, copies=copies),
    ):
        assert_apart(placement, owner)


@given(st.integers(3, 12), st.integers(1, 8), st.integers(1, 2), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_even_distribution_puts_no_more_than_its_share_on_a_node(nodes: int, per_node: int, copies: int, seed: int) -> None:
    owner = np.arange(nodes * per_node) % nodes

    placement = allocate_even(owner, nodes, np.random.default_rng(seed), copies=copies)

    assert np.bincount(placement.ravel(), minlength=nodes).max() <= math.ceil(len(owner) * copies / nodes)


def test_random_allocation_reaches_every_other_node_alike() -> None:
    counts = np.bincount(allocate_random(np.zeros(9000, int), 10, np.random.default_rng(1)).ravel(), minlength=10)

    assert counts[0] == 0
    assert counts[1:].min() > 850


def test_a_checkpoint_goes_where_the_load_falls_when_its_own_rises() -> None:
    # given groups 0 and 1 whose loads swing against each other, group 2 that swings with group 0, and an idle node
    swing = np.sin(2 * np.pi * np.arange(40) / 20)
    samples = np.array([2 + swing, 2 - swing, 2 + swing])
    values = checkpoint_values(samples, np.array([0, 1, 2]), 4)

    assert values[0] == pytest.approx([np.inf, -2, 2, 0], abs=1e-5)
    assert allocate(values, np.full(3, 2.0)).tolist() == [[1], [0], [1]]


def test_of_equally_good_nodes_the_one_that_holds_the_least_is_taken() -> None:
    # given constant loads: nothing correlates with anything
    load = np.array([5.0, 3.0, 2.0, 1.0, 1.0])
    values = checkpoint_values(np.repeat(load[:, None], 10, axis=1), np.zeros(5, int), 4)

    placement = allocate(values, load)

    assert carried_load(load, placement, 4).tolist() == [0, 5, 4, 3]


def test_fairness_bounds_what_a_node_carries_as_long_as_a_node_has_room() -> None:
    rng = np.random.default_rng(7)
    samples = (rng.random((2000, 6)) @ rng.random((6, 60)) + 0.1).astype(np.float32)
    owner, load = np.arange(2000) % 20, samples.mean(axis=1)
    values = checkpoint_values(samples, owner, 20)

    placements = {fairness: allocate(values, load, fairness=fairness) for fairness in (0.1, 1.0, math.inf)}

    for fairness, placement in placements.items():
        assert carried_load(load, placement, 20).max() <= fair_limit(load, 1, 20, fairness)
    assert score(values, placements[0.1]) > score(values, placements[1.0]) > score(values, placements[math.inf])


def test_a_checkpoint_too_heavy_for_any_node_takes_the_one_of_least_value() -> None:
    load = np.array([10.0, 1.0, 1.0])
    values = np.array([[np.inf, 3, 2], [-1, np.inf, 0], [-1, 0, np.inf]], np.float32)

    assert allocate(values, load, fairness=0.0)[0].tolist() == [2]


@given(jobs(groups=12, nodes=5), st.sampled_from([0.5, 1.0, math.inf]))
@settings(max_examples=examples(100), deadline=None)
def test_without_a_limit_it_is_the_optimum(job: tuple[Floats, Ints, int, int], fairness: float) -> None:
    samples, owner, nodes, copies = job
    values, load = checkpoint_values(samples, owner, nodes), samples.mean(axis=1).astype(np.float64)

    best = optimal_score(values, load, copies, math.inf)

    assert best is not None
    assert score(values, allocate(values, load, copies=copies)) == pytest.approx(best, abs=1e-4)
    assert score(values, allocate(values, load, copies=copies, fairness=fairness)) >= best - 1e-4


@pytest.mark.parametrize("fairness", [0.25, 0.5, 1.0])
def test_under_a_limit_it_comes_close_to_the_optimum_and_refined_within_five_percent(fairness: float) -> None:
    gaps = np.array([gaps_to_optimum(seed, fairness) for seed in range(20)])

    assert gaps[:, 0].mean() <= 0.1, gaps
    assert gaps[:, 1].max() <= 0.05, gaps


@given(jobs(groups=40), FAIRNESS)
@settings(deadline=None)
def test_refining_keeps_the_constraints_and_never_raises_the_score(job: tuple[Floats, Ints, int, int], fairness: float) -> None:
    samples, owner, nodes, copies = job
    values, load = checkpoint_values(samples, owner, nodes), samples.mean(axis=1).astype(np.float64)
    greedy = allocate(values, load, copies=copies, fairness=fairness)

    refined = refine(values, load, greedy, fairness=fairness)

    assert_apart(refined, owner)
    assert score(values, refined) <= score(values, greedy) + 1e-4
    limit = max(carried_load(load, greedy, nodes).max(), fair_limit(load, copies, nodes, fairness))
    assert carried_load(load, refined, nodes).max() <= limit + 1e-9


@pytest.mark.long
@given(jobs(groups=40), FAIRNESS, st.sampled_from([0.0, 0.05, 0.3]), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(200), deadline=None)
def test_reallocation_ends_within_its_tolerance(job: tuple[Floats, Ints, int, int], fairness: float, tolerance: float, seed: int) -> None:
    samples, owner, nodes, copies = job
    values, load = checkpoint_values(samples, owner, nodes), samples.mean(axis=1).astype(np.float64)
    fresh = allocate(values, load, copies=copies, fairness=fairness)
    aged = allocate_random(owner, nodes, np.random.default_rng(seed), copies=copies)

    result = reallocate(values, load, aged, tolerance=tolerance, fairness=fairness)

    assert_apart(result, owner)
    assert score(values, result) <= score(values, fresh) + tolerance * load.sum() * copies + 1e-4
    limit = max(carried_load(load, aged, nodes).max(), carried_load(load, fresh, nodes).max(), fair_limit(load, copies, nodes, fairness))
    assert carried_load(load, result, nodes).max() <= limit + 1e-9
    assert reallocate(values, load, result, tolerance=tolerance + 1e-6, fairness=fairness).tolist() == result.tolist()


def test_reallocation_moves_first_what_improves_the_score_most() -> None:
    # given two checkpoints in the wrong place, one of them much worse
    values = np.array([[np.inf, -8, 8], [np.inf, -1, 1], [1, -1, np.inf]], np.float32)
    placement, load = np.array([[2], [2], [1]]), np.array([8.0, 1.0, 1.0])

    assert reallocate(values, load, placement, tolerance=0.5).tolist() == [[1], [2], [1]]
    assert reallocate(values, load, placement, tolerance=0.0).tolist() == [[1], [1], [1]]
    assert reallocate(values, load, placement, tolerance=2.0).tolist() == placement.tolist()


def test_reallocation_takes_a_checkpoint_from_its_own_groups_node_even_if_the_score_would_do() -> None:
    values = np.array([[np.inf, 0, 1], [0, np.inf, 0]], np.float32)

    placement = reallocate(values, np.ones(2), np.array([[0], [2]]), tolerance=2.0)

    assert placement.tolist() == [[1], [2]]


@given(st.lists(st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=25))
@settings(deadline=None)
def test_a_history_holds_the_newest_samples_and_their_mean(samples: list[list[float]]) -> None:
    history = LoadHistory(groups=3, samples=6)
    for sample in samples:
        history.add(np.array(sample))

    newest = np.array(samples[-6:], np.float32).T
    assert sorted(map(tuple, history.samples().T.tolist())) == sorted(map(tuple, newest.T.tolist()))
    assert history.mean() == pytest.approx(newest.mean(axis=1, dtype=np.float64), rel=1e-6, abs=1e-3)


def test_wrong_shapes_and_numbers_are_refused_with_what_was_expected() -> None:
    history = LoadHistory(groups=3, samples=6)
    with pytest.raises(UsageError, match="expected finite loads of 3 key groups"):
        history.add(np.array([1.0, np.nan, 2.0]))
    with pytest.raises(UsageError, match="at least 1 key group and 2 samples"):
        LoadHistory(groups=3, samples=1)
    with pytest.raises(UsageError, match="a key group and its 2 checkpoints lie on 3 nodes"):
        allocate(np.zeros((4, 2), np.float32), np.ones(4), copies=2)
    with pytest.raises(UsageError, match="there are 2"):
        allocate_even(np.zeros(4, int), 2, np.random.default_rng(1), copies=2)
    with pytest.raises(UsageError, match="at least 0"):
        allocate(np.zeros((4, 3), np.float32), np.ones(4), fairness=-0.1)
