"""The balancing policies against the paper's algorithm taken literally, against exact optima, and at their limits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticity.balance.dlb import dlb_h, dlb_l
from elasticity.balance.grouping import kg, start
from elasticity.balance.lptf import lptf
from elasticity.balance.swaps import dlb_s
from elasticity.balance.view import BalanceDecision, BalanceLimits, LoadView, eng_load, floor, goal, imb_score
from tests.elasticity.balance_reference import algorithm_1, optimum_percent
from tests.support.seeds import examples, seeds
from udo_protocol.errors import UsageError

LITERAL = BalanceLimits(slack=None)
EXACT = BalanceLimits(chance_sigmas=0)


def zipf(keys: int, exponent: float, events: int = 10_000_000) -> np.ndarray:
    """The number of events of each key; the key's number is its rank."""
    weights = np.arange(1, keys + 1) ** -exponent
    return np.round(events * weights / weights.sum()).astype(np.int64)


def from_kg(keys_load: np.ndarray, engines: int) -> LoadView:
    """That load under static key grouping; as in the paper the most frequent key has number 1."""
    return LoadView(np.arange(1, len(keys_load) + 1) % engines, keys_load, engines)


@st.composite
def views(draw: st.DrawFn, keys: int = 14, load: int = 40, engines: int = 4) -> LoadView:
    """Small systems in any assignment, with loads that may be 0."""
    n = draw(st.integers(2, engines))
    loads = draw(st.lists(st.integers(0, load), min_size=1, max_size=keys))
    return LoadView(np.array(draw(st.lists(st.integers(0, n - 1), min_size=len(loads), max_size=len(loads)))), np.array(loads), n)


def test_kg_on_five_engines_has_the_papers_imbalance_of_77_percent() -> None:
    assert imb_score(eng_load(*_of(from_kg(zipf(4096, 1.5), 5)))) == pytest.approx(77, abs=0.5)
    assert imb_score(eng_load(*_of(from_kg(zipf(4096, 0.2), 5)))) < 3


def _of(view: LoadView) -> tuple[np.ndarray, np.ndarray, int]:
    return view.keys_map, view.keys_load, view.engines


def test_imb_score_is_the_relative_sample_standard_deviation() -> None:
    assert imb_score(np.array([1.0, 3.0])) == pytest.approx(100 * math.sqrt(2) / 2)
    assert imb_score(np.zeros(3)) == imb_score(np.array([7.0])) == 0


def test_a_view_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UsageError, match="keys_load: expected one value for each of the keys"):
        LoadView(np.array([0, 1]), np.array([1]), 2)
    with pytest.raises(UsageError, match="keys_load: expected numbers of at least 0, got -1"):
        LoadView(np.array([0, 1]), np.array([1, -1]), 2)
    with pytest.raises(UsageError, match="state_bytes: expected numbers of at least 0, got nan"):
        LoadView(np.array([0, 1]), np.array([1, 1]), 2, np.array([1.0, np.nan]))
    with pytest.raises(UsageError, match="keys_map: expected engines 0 to 1, got 0 to 2"):
        LoadView(np.array([0, 2]), np.array([1, 1]), 2)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(views(), st.sampled_from([0, 5, 15, 40]))
def test_dlb_is_the_papers_algorithm(view: LoadView, theta: int) -> None:
    for policy, choose in ((dlb_h, max), (dlb_l, min)):
        expected = algorithm_1(view.keys_map.tolist(), view.keys_load.tolist(), view.engines, theta, choose)
        assert policy(view, BalanceLimits(theta, slack=None)).keys_map.tolist() == expected, policy.__name__


@settings(max_examples=examples(300), deadline=None)
@given(views(keys=12, load=12))
def test_dlb_s_meets_theta_wherever_an_assignment_does_and_is_else_within_5_percent_of_the_best(view: LoadView) -> None:
    best = optimum_percent(view.keys_load.tolist(), view.engines) if view.keys_load.any() else 0
    assert dlb_s(view, EXACT).after_percent <= max(15, 1.05 * best) + 1e-9


@pytest.mark.parametrize(
    ("keys_load", "keys_map", "engines"),
    [
        ([8, 3, 3, 1, 2, 1, 5, 5, 5], [1, 1, 2, 0, 2, 3, 0, 3, 3], 4),
        ([3, 10, 1, 3, 1, 1, 1], [1, 0, 0, 1, 2, 2, 0], 3),
        ([7, 1, 2, 7, 4, 2, 7, 5], [0, 1, 0, 0, 3, 1, 2, 0], 4),
    ],
)
def test_dlb_s_finds_what_neither_moves_nor_swaps_reach(keys_load: list[int], keys_map: list[int], engines: int) -> None:
    view, best = LoadView(np.array(keys_map), np.array(keys_load), engines), optimum_percent(keys_load, engines)
    assert dlb_h(view, EXACT).after_percent > max(15, 1.05 * best)
    assert dlb_s(view, EXACT).after_percent <= max(15, 1.05 * best) + 1e-9


@pytest.mark.parametrize("seed", seeds(40))
def test_dlb_s_does_so_with_more_keys_than_a_search_could_try(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engines, keys = int(rng.integers(2, 4)), int(rng.integers(17, 40))
    load = np.maximum(1, 50 * np.arange(1, keys + 1) ** -rng.uniform(0.2, 2)).astype(np.int64)
    best = optimum_percent(load.tolist(), engines)
    assert dlb_s(LoadView(rng.integers(0, engines, keys), load, engines), EXACT).after_percent <= max(15, 1.05 * best) + 1e-9


@pytest.mark.long
@settings(max_examples=examples(200), deadline=None)
@given(views())
def test_no_assignment_lies_below_the_floor(view: LoadView) -> None:
    if view.keys_load.any() and view.keys_load.sum() < 200:
        assert floor(view.keys_load, view.engines).percent <= optimum_percent(view.keys_load.tolist(), view.engines) + 1e-9


@settings(max_examples=examples(200), deadline=None)
@given(views())
def test_every_policy_says_what_it_did(view: LoadView) -> None:
    for policy in (dlb_h, dlb_l, dlb_s, lptf, kg):
        decision: BalanceDecision = policy(view, BalanceLimits())
        assert decision.keys.tolist() == [k for k in range(len(view.keys_load)) if decision.keys_map[k] != view.keys_map[k]]
        assert decision.after_percent == imb_score(eng_load(decision.keys_map, view.keys_load, view.engines))
        if policy is not lptf:  # LPTF may end worse than it began
            assert decision.after_percent <= decision.before_percent + 1e-9
        if not goal(view, BalanceLimits()).due(eng_load(*_of(view))):
            assert not len(decision.keys)


@pytest.mark.parametrize(
    ("exponent", "engines", "lowest", "bound", "moved_percent"),
    # At 1.2 the hottest key's engine has to give away more than 5 % of all keys, even if the heaviest of its others go first.
    [(1.5, 5, 52.4, 1.20, 5), (1.5, 6, 65.0, 1.15, 5), (1.2, 5, 4.3, 1.58, 12.5), (1.2, 6, 14.3, 1.46, 12.5)],
)
def test_dlb_h_reaches_what_keeping_keys_whole_allows_with_few_keys(
    exponent: float, engines: int, lowest: float, bound: float, moved_percent: float
) -> None:
    # given the paper's skewed stream on static key grouping
    view = from_kg(zipf(4096, exponent), engines)
    before, share = eng_load(*_of(view)), view.keys_load / view.keys_load.sum()
    possible = before.max() / before.sum() / max(share.max(), 1 / engines)
    assert possible == pytest.approx(bound, abs=0.01)
    assert floor(view.keys_load, engines).percent == pytest.approx(lowest, abs=0.1)
    # when
    decision = dlb_h(view, BalanceLimits())
    after = eng_load(decision.keys_map, view.keys_load, engines)
    # then the busiest engine, and so throughput, is within 5 % of that bound
    assert decision.after_percent <= max(15, 1.05 * floor(view.keys_load, engines).percent)
    assert before.max() / after.max() >= 0.95 * possible
    assert 100 * len(decision.keys) / 4096 <= moved_percent
    assert len(dlb_l(view, BalanceLimits()).keys) > len(decision.keys)


def test_a_key_too_hot_is_named_and_no_others_are_moved_in_vain() -> None:
    # given a key with half of the load, and the rest spread evenly over the other engines
    view = LoadView(np.array([0, *([1, 2, 3] * 100)]), np.array([300, *([1] * 300)]), 4)
    # then the paper's algorithm would move nothing either; but it would move a light key beside the hot one in vain
    assert dlb_h(view, BalanceLimits()).too_hot == (0,)
    beside = LoadView(np.array([0, 0, *([1, 2, 3] * 100)]), np.array([300, 1, *([1] * 300)]), 4)
    assert dlb_h(beside, LITERAL).keys.tolist() == [1]
    assert not len(dlb_h(beside, EXACT).keys)


def test_keys_that_leave_theta_within_reach_are_not_named() -> None:
    aim = goal(LoadView(np.array([0, 1, 2]), np.array([11, 10, 10]), 3), BalanceLimits())
    assert (aim.percent, aim.hot, aim.too_hot) == (15, (0,), ())


def test_a_window_of_few_events_is_no_reason_to_move_keys() -> None:
    # given sixty events on four equal engines, counted by chance as 20, 8, 17 and 15
    view = LoadView(np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([12, 8, 5, 3, 9, 8, 7, 8]), 4)
    assert dlb_h(view, BalanceLimits()).before_percent > 15
    assert not len(dlb_h(view, BalanceLimits()).keys)
    assert len(dlb_h(view, EXACT).keys)
    # when a hundred times as many are counted, the same difference is a reason
    assert len(dlb_h(LoadView(view.keys_map, view.keys_load * 100, 4), BalanceLimits()).keys)


def test_state_to_carry_is_weighed_against_load() -> None:
    # given two keys that would help, the more loaded one with far more state
    view = LoadView(np.array([0, 0, 0, 1]), np.array([40, 41, 100, 100]), 2, np.array([1_000, 1_000_000, 0, 0]))
    assert dlb_h(view, EXACT).keys.tolist() == [1]
    assert dlb_h(view, BalanceLimits(events_per_byte=1e-5, chance_sigmas=0)).keys.tolist() == [0]
    # when no key is worth its state, nothing moves
    assert not len(
        dlb_h(LoadView(view.keys_map, view.keys_load, 2, np.full(4, 10**9)), BalanceLimits(events_per_byte=1e-5, chance_sigmas=0)).keys
    )


def test_a_decision_is_bounded_and_the_next_one_goes_on() -> None:
    view, once = from_kg(zipf(4096, 1.2), 5), dlb_l(from_kg(zipf(4096, 1.2), 5), BalanceLimits())
    moved, rounds = view.keys_map, 0
    while len(dlb_l(LoadView(moved, view.keys_load, 5), BalanceLimits(max_moves=50)).keys):
        moved, rounds = dlb_l(LoadView(moved, view.keys_load, 5), BalanceLimits(max_moves=50)).keys_map, rounds + 1
    assert rounds > 1
    assert moved.tolist() == once.keys_map.tolist()


def test_lptf_moves_most_keys() -> None:
    decision = lptf(from_kg(zipf(4096, 1.2), 5), BalanceLimits())
    assert decision.after_percent == pytest.approx(floor(zipf(4096, 1.2), 5).percent, abs=0.1)
    assert len(decision.keys) > 0.7 * 4096


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_loads_of_any_number_type_decide_the_same(dtype: type) -> None:
    keys_load = np.minimum(zipf(300, 1.3, 100_000), 60_000)
    keys_load[50:80] = 0
    for policy in (dlb_h, dlb_l, dlb_s, lptf):
        same = [policy(from_kg(loads, 5), BalanceLimits()).keys_map.tolist() for loads in (keys_load, keys_load.astype(dtype))]
        assert same[0] == same[1], policy.__name__


def test_static_key_grouping_starts_with_key_modulo_engines_and_stays() -> None:
    assert start(7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert not len(kg(from_kg(zipf(4096, 1.5), 5), BalanceLimits()).keys)


def test_a_decision_over_a_million_keys_and_a_thousand_engines_ends() -> None:
    """The benchmark measures `decision_ms_at_scale`, below 100 ms; here only quadratic time would fail, by the time-out of every test."""
    rng = np.random.default_rng(1)
    view = LoadView(start(1_000_000, 1_000), rng.lognormal(0, 2, 1_000_000), 1_000)
    decision = dlb_h(view, BalanceLimits())
    assert decision.before_percent > decision.after_percent
    assert decision.after_percent <= 15 + 1e-6
    assert Counter(decision.keys_map.tolist()).total() == 1_000_000
