"""The decisions of a single node: any policy stays within its bounds and tokens, and never reverses quickly."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticity.bottleneck import fuzzy as rules
from elasticity.scaling.local import local
from elasticity.scaling.modes import AUTO, Elasticity
from tests.elasticity.applications import decide, kinds, operator, sample
from udo_protocol.errors import UsageError


def over_time(uses: list[float | None], every_s: float = 10.0, now: int = 2, **own: Any) -> list[tuple[float, str, int]]:
    """The steps granted (when, kind, replicas) to an operator with these uses, one sample after the other."""
    memory, steps = None, []
    for i, use in enumerate(uses):
        seen = sample(operator(uses=(use,) * now), at_s=every_s * i)
        decision, memory = decide(local, seen, memory, random.Random(i), **own)
        for _, kind, now in kinds(decision.granted):
            steps.append((every_s * i, kind, now))
    return steps


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=120), st.sampled_from(["accept_all", "ds2", "fuzzy", "edf"]), st.integers(1, 8)
)
def test_whatever_is_measured_a_step_back_comes_late_and_all_stay_within_bounds(uses: list[float | None], policy: str, now: int) -> None:
    steps = over_time(uses, now=now, policy=policy, least=2, most=5, reverse_s=300.0, token_s=30.0, capacity=2)
    assert all(2 <= replicas <= 5 for _, _, replicas in steps)
    if not 2 <= now <= 5 and uses:
        assert steps[0][0] == 0.0, "the bounds themselves are brought about at once"
    for (before_s, before, _), (at_s, kind, _) in zip(steps, steps[1:], strict=False):
        assert kind == before or at_s - before_s >= 300.0
    for at_s, _, _ in steps[1:]:
        assert sum(at_s - 60 < when <= at_s for when, _, _ in steps[1:]) <= 4, "two tokens, and one more each 30 s"


def test_an_oscillating_load_moves_even_the_baseline_without_guards_only_slowly() -> None:
    swinging = [0.95 if i % 2 else 0.05 for i in range(360)]  # an hour, reversed every ten seconds
    free = over_time(swinging, now=2, policy="accept_all", most=6, reverse_s=0.0, token_s=1.0, capacity=1)
    kept = over_time(swinging, now=2, policy="accept_all", most=6)
    assert len(free) > 100, "so that the next line can fail"
    turns = sum(a[1] != b[1] for a, b in zip(kept, kept[1:], strict=False))
    assert turns <= 3600 / 300


def test_a_step_takes_a_token_and_they_come_back() -> None:
    steps = over_time([0.95] * 30, now=1, policy="accept_all", most=64, token_s=80.0, capacity=2)
    assert [at_s for at_s, _, _ in steps] == [0.0, 10.0, 80.0, 160.0, 240.0]


def test_declined_steps_say_why() -> None:
    seen = sample(operator(uses=(0.95, 0.95)))
    decision, _ = decide(local, seen, policy="accept_all", most=2)
    assert [why for _, why in decision.declined] == ["it has 2 of 1 to 2"]
    decision, memory = decide(local, seen, policy="accept_all", most=3)
    idle = replace(sample(operator(uses=(0.05, 0.05, 0.05))), at_s=40.0)
    decision, _ = decide(local, idle, memory, policy="accept_all", most=3)
    assert [why for _, why in decision.declined] == ["the last step was the opposite one, 40 s ago"]


def test_without_an_event_for_long_enough_there_is_no_replica_until_one_comes() -> None:
    memory, steps, own = None, [], {"policy": "accept_all", "most": 2, "idle_after_s": 40.0}
    # None: not measured; -1: no replica
    for i, use in enumerate([0.5, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, -1, -1, 0.9]):
        seen = sample(operator(uses=() if use == -1 else (use,)), at_s=10.0 * i)
        decision, memory = decide(local, seen, memory, random.Random(i), **own)
        steps += [(10.0 * i, step.kind, step.replicas) for step in decision.granted]
    assert steps == [(70.0, "scale_in", 0), (100.0, "scale_out", 2)], "and no step in the other direction has to wait for it"
    decision, _ = decide(local, sample(operator(uses=())), policy="accept_all", most=2)
    assert kinds(decision.granted) == [("op", "scale_out", 1)], "asked for no longer, it is brought back"


def test_a_rule_table_of_ones_own_decides() -> None:
    eager = rules.shipped_text().replace('"low low low" = "idle"', '"low low low" = "overloaded"')
    idle = [0.1] * 10
    assert over_time(idle, now=1, most=4) == []
    assert [kind for _, kind, _ in over_time(idle, now=1, most=4, rules=eager)] == ["scale_out", "scale_out"]


def test_what_a_deployment_asks_for_is_read_from_json_and_back() -> None:
    wish = Elasticity.parse({"mode": "auto", "policy": "ds2", "least": 2, "settings": {"target_use": 0.5, "token_s": 60}})
    assert Elasticity.parse(wish.record()) == wish and wish.mode == AUTO
    assert wish.header(cores=4) == {"policy": "ds2", "least": 2, "most": 4, "target_use": 0.5, "token_s": 60}
    assert Elasticity.parse({"least": 8}).header(cores=4)["most"] == 8
    assert Elasticity.parse(None) == Elasticity() and Elasticity().mode == "advise"


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"mode": "on"}, "expected mode off, advise, auto, got 'on'"),
        ({"size": 3}, "no entry 'size'; there are mode, policy, least, most, idle_after_s, settings"),
        ({"policy": "os:system"}, "expected a policy that comes with the package, accept_all, ds2, edf, fuzzy"),
        ({"policy": "local"}, "expected a policy that comes with the package"),
        ({"least": 0}, "expected least from 1 to 64, got 0"),
        ({"idle_after_s": -1}, "expected idle_after_s in seconds, 0 for never, got -1"),
        ({"settings": {"idle_after_s": 1}}, "no setting 'idle_after_s'"),
        ({"settings": {"balance": "os:system"}}, "setting balance: expected the name of a balancing policy, got 'os:system'"),
        ({"least": 3, "most": 2}, "expected least <= most, got 3 and 2"),
        ({"settings": {"speed": 1}}, "policy 'fuzzy' has no setting 'speed'; there are balance, balance_confirm"),
        ({"settings": {"grow": "much"}}, "setting grow: expected a number, got 'much'"),
        ({"settings": {"calm": 1.5}}, "setting calm: expected a whole number"),
        ({"settings": {"grow": float("nan")}}, "setting grow: expected a number of at least 0"),
        ({"settings": {"rules": "[inputs]"}}, r"expected a table \[output\]"),
        ({"settings": {"least": 1}}, "no setting 'least'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_was_expected(given_: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Elasticity.parse(given_)
