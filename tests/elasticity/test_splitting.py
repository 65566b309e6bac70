"""Policies that choose an engine per event: their balance, the keys that they split, and the heavy hitters that they find."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticity.balance.heavy import SpaceSaving
from elasticity.balance.splitting import DChoices, PartialKeyGrouping, WChoices, choices
from udo_protocol.errors import UsageError


@given(st.lists(st.integers(0, 12)), st.integers(1, 8))
def test_space_saving_never_underestimates_and_misses_no_heavy_key(keys: list[int], capacity: int) -> None:
    seen, exact = SpaceSaving(capacity), Counter(keys)
    for i, key in enumerate(keys, 1):
        estimate, now = seen.add(key), keys[:i].count(key)
        assert now <= estimate <= now + i / capacity
    found = seen.above(0)
    assert len(found) <= capacity
    assert list(found.values()) == sorted(found.values(), reverse=True)
    for key, n in exact.items():
        assert n <= len(keys) / capacity or found[key] >= n


def test_space_saving_needs_room() -> None:
    with pytest.raises(UsageError, match="capacity: expected at least 1 key, got 0"):
        SpaceSaving(0)


def skewed(exponent: float, events: int) -> list[int]:
    weights = np.arange(1, 4097) ** -exponent
    return np.random.default_rng(3).choice(np.arange(1, 4097), events, p=weights / weights.sum()).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("policy", "hottest"), [(PartialKeyGrouping, 2), (DChoices, 5), (WChoices, 5)])
def test_a_hot_key_is_split_over_as_many_engines_as_the_policy_allows(policy: type[PartialKeyGrouping], hottest: int) -> None:
    router, engines = policy(5, seed=1), defaultdict(set)
    sent: Counter[int] = Counter()
    for key in skewed(1.5, 20_000):
        engine = router.route(key)
        engines[key].add(engine)
        sent[engine] += 1
    assert len(engines[1]) == hottest
    assert max(len(e) for k, e in engines.items() if k > 1000) <= 2
    # the hottest key, 38.7 % of the events, is halved by two choices and spread evenly by more
    assert max(sent.values()) / 20_000 < (0.25 if hottest == 2 else 0.201)


def test_d_choices_takes_as_few_as_the_head_needs() -> None:
    assert choices([], 50) == 2
    assert choices([0.02], 50) == 2
    assert 5 < choices([0.1], 50) < choices([0.3], 50) < 50
    assert choices([0.9], 5) == 5
