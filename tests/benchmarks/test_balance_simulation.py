"""The simulated engines agree with arithmetic, and stories are detected with moving keys as in one process."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulated import stories
from benchmarks.simulated.engines import Phase, Setup, run, zipf_phases
from elasticity.balance.dlb import dlb_h
from elasticity.balance.splitting import PartialKeyGrouping
from elasticity.balance.view import BalanceLimits

SETUP = Setup(keys=16, events_divisor=8)


def test_the_busiest_engine_bounds_the_throughput() -> None:
    # given a phase in which half of the events go to one of four engines
    phase = Phase(np.array([0, 1, 0, 2, 0, 3]), 600, True)
    # when each engine can answer 30 events/s
    out = run(SETUP, [phase], 4, None, None, BalanceLimits())
    # then all together answer twice that, apart from the queues that fill at first
    assert out.events == pytest.approx(600 * 60, rel=0.02)
    assert out.skewed_per_engine.tolist() == pytest.approx([out.events / 2, *[out.events / 6] * 3], rel=0.01)


def test_balancing_brings_what_the_hottest_key_allows_and_moving_costs() -> None:
    phase = Phase(np.array([0, 4, 0, 8, 1, 2]), 600, True)
    kg, dlb = (run(SETUP, [phase], 4, policy, None, BalanceLimits()) for policy in (None, dlb_h))
    assert dlb.events / kg.events == pytest.approx(2, rel=0.05)
    assert sum(dlb.moved) >= 2
    assert 0 < dlb.events_moved <= sum(dlb.moved) * SETUP.stored_per_key / SETUP.events_divisor


def test_the_stream_is_the_same_for_all_and_the_most_frequent_key_has_number_1() -> None:
    a, b = (zipf_phases(SETUP, 1.5, 0.2, 4, (1, 1), seed=3) for _ in range(2))
    assert all((x.keys == y.keys).all() for x, y in zip(a, b, strict=True))
    assert np.bincount(a[1].keys).argmax() == 1
    assert np.bincount(a[1].keys, minlength=16)[0] > 0  # the last rank


def test_keys_that_move_with_their_state_detect_what_one_process_does_and_split_keys_do_not() -> None:
    tweets = [stories.vector(t) for t in stories.generated(1_500, seed=2)]
    keys = stories.lsh_keys(tweets).tolist()
    expected = stories.first_stories(tweets, keys)
    assert 0 < len(expected) < 1_500

    keys_map = dict.fromkeys(keys, 0)

    def review(recent: object) -> list[tuple[int, int, int]]:
        moves = [(k, e, (e + 1) % 3) for k, e in keys_map.items() if k % 2]
        keys_map.update({k: new for k, _, new in moves})
        return moves

    assert stories.detect(tweets, keys, 3, keys_map.__getitem__, review, 100) == expected
    split = stories.detect(tweets, keys, 3, PartialKeyGrouping(3).route, None, 100)
    assert split > expected  # nothing is missed, and stories known to another engine are reported again


def test_similar_tweets_share_a_key_and_addresses_say_nothing() -> None:
    same = [stories.vector("Storm hits the coast http://t.co/a"), stories.vector("storm HITS the coast https://t.co/b")]
    assert same[0] == same[1]
    assert len(set(stories.lsh_keys(same))) == 1
    assert stories.first_stories(same, [7, 7]) == {0}
    assert stories.first_stories(same, [7, 8]) == {0, 1}
