"""Fuzzy bottleneck detection: the arithmetic, the shipped rules, a user's own rules, and the steps over time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticity.bottleneck import fuzzy
from elasticity.bottleneck.detector import Hysteresis, OperatorHistory, Step, step
from elasticity.bottleneck.signals import INPUTS, SlotSample, inputs
from udo_protocol.errors import UsageError

MODEL = fuzzy.shipped()
TEXT = (fuzzy.files("elasticity.bottleneck") / "rules.toml").read_text("utf-8")
POINTS = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 60))
EASY = SlotSample(cpu=0.1, memory=0.2, busy=0.1, blocked=0, arrivals=10, answers=10, backlog=0)


def load(use: float, memory: float, queue: float) -> float:
    return fuzzy.evaluate(MODEL, {"use": use, "memory": memory, "queue": queue}).load


def test_a_value_computed_by_hand() -> None:
    # given use 0.775: 0.7 medium, 0.3 high; memory 0.6: 0.5 low, 0.5 medium; queue 1.0 s: 0.5 low, 0.5 medium
    found = fuzzy.evaluate(MODEL, {"use": 0.775, "memory": 0.6, "queue": 1.0})
    # then light 0.35 (medium, any, low), busy 0.35 + 0.15 (medium, any, medium; high, any, low), strained 0.15; all areas are equal
    assert found.load == pytest.approx(0.35 * 30 + 0.5 * 50 + 0.15 * 70)
    assert found.fired[0].strength == pytest.approx(0.175)
    assert len(found.fired) == 8
    assert sum(f.strength for f in found.fired) == pytest.approx(1)
    assert found.text().splitlines()[0] == "load 46 of 100 from use 0.775, memory 0.6, queue 1"
    assert "use medium and memory low and queue low → light" in found.text()


def test_the_centre_of_gravity_is_weighed_by_area() -> None:
    # given one input halfway between terms whose output terms are a wide rectangle and a right-angled triangle
    text = """
        [inputs.use]
        low = [0, 0, 0, 1]
        high = [0, 1, 1, 1]
        [output]
        a = [0, 0, 20, 20]
        b = [40, 70, 70, 70]
        [rules]
        low = "a"
        high = "b"
        [thresholds]
        scale_in = 1
        alarming = 2
        scale_out = 3
    """
    # then areas 20 and 15 at 10 and 60, each halved
    assert fuzzy.evaluate(fuzzy.read(text), {"use": 0.5}).load == pytest.approx((20 * 10 + 15 * 60) / 35)


@given(POINTS, POINTS)
def test_more_of_any_input_never_means_less_load(a: tuple[float, float, float], b: tuple[float, float, float]) -> None:
    lower, higher = (tuple(f(x, y) for x, y in zip(a, b, strict=True)) for f in (min, max))
    assert load(*lower) <= load(*higher) + 1e-9


@given(st.tuples(*[st.floats(allow_nan=False)] * 3))
def test_load_stays_within_its_bounds_whatever_comes(point: tuple[float, float, float]) -> None:
    assert 0 <= load(*point) <= 100


def test_every_rule_can_decide_alone() -> None:
    middle = {name: {term: (b + c) / 2 for term, (_, b, c, _) in terms.items()} for name, terms in MODEL.inputs.items()}
    for terms, outcome in MODEL.rules.items():
        [fired] = fuzzy.evaluate(MODEL, {n: middle[n][t] for n, t in zip(MODEL.inputs, terms, strict=True)}).fired
        assert (tuple(fired.if_terms.values()), fired.outcome, fired.strength) == (terms, outcome, 1)


def test_every_threshold_can_be_crossed() -> None:
    assert load(0, 0, 0) < MODEL.thresholds.scale_in
    assert load(1, 0, 60) >= MODEL.thresholds.scale_out
    assert MODEL.thresholds.scale_in < load(0.65, 0, 0) < MODEL.thresholds.alarming


def test_without_a_queue_nothing_is_taken_over_and_it_is_prepared_for_memory_that_is_nearly_full_alone() -> None:
    hundredths = [n / 100 for n in range(101)]
    assert max(load(use, memory, 0) for use in hundredths for memory in hundredths) < MODEL.thresholds.scale_out
    assert max(load(use, memory, 0) for use in hundredths for memory in hundredths if memory <= 0.8) < MODEL.thresholds.alarming
    assert load(1, 1, 0) >= MODEL.thresholds.alarming


def test_an_input_that_was_not_measured_is_refused_not_read_as_zero() -> None:
    with pytest.raises(UsageError, match="input 'queue': expected a number, got None; there are use, memory, queue"):
        fuzzy.evaluate(MODEL, {"use": 1, "memory": 1})
    with pytest.raises(UsageError, match="input 'use': expected a number, got nan"):
        fuzzy.evaluate(MODEL, {"use": float("nan"), "memory": 1, "queue": 1})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"low low low" = "idle"', "", "[rules] 'low low low': expected one of idle, .*, got None"),
        ('"low low low" = "idle"', '"low low low" = "lazy"', "got lazy"),
        (
            '"low low low" = "idle"',
            '"low low low" = "idle"\n"low low" = "idle"',
            "[rules] 'low low': expected a term each of use, memory, queue",
        ),
        (
            "low = [0.0, 0.0, 0.3, 0.6]",
            "low = [0.0, 0.0, 0.3, 0.5]",
            r"\[inputs.use\]: expected memberships that add up to 1 everywhere, got 0.667 at 0.5",
        ),
        ("low = [0.0, 0.0, 0.3, 0.6]", "low = [0.0, 0.6, 0.3, 0.6]", r"\[inputs.use\] low: expected four rising corners"),
        ("overloaded = [80, 90, 90, 100]", "overloaded = [80, 90, 90, 101]", r"\[output\]: expected terms within 0 and 100, got 0 to 101"),
        ("alarming = 60", "alarming = 80", r"\[thresholds\]: expected 0 <= scale_in < alarming < scale_out <= 100"),
        ("alarming = 60", 'alarming = "60"', r"\[thresholds\]: expected 0 <= scale_in < alarming < scale_out <= 100"),
        ("alarming = 60", "alarming = nan", r"\[thresholds\]: expected 0 <= scale_in < alarming < scale_out <= 100"),
        ('"low low low" = "idle"', '"low low low" = ["idle"]', r"[rules] 'low low low': expected one of idle, .*, got \['idle'\]"),
        ("[inputs.queue]", "[inputs.length]", r"\[inputs.length\]: expected an input that is measured: use, memory, queue"),
        ("low = [0.0, 0.0, 0.3, 0.6]", "low = [nan, 0.0, 0.3, 0.6]", r"\[inputs.use\] low: expected four rising corners"),
        ("idle = [0, 10, 10, 20]", "idle = [0, nan, 10, 20]", r"\[output\] idle: expected four rising corners"),
        ("high = [2.5, 5.0, 60.0, 60.0]", "high = [2.5, 5.0, inf, inf]", r"\[inputs.queue\] high: expected four rising corners"),
        ("[thresholds]", "[limits]", r"expected a table \[thresholds\]"),
        ("[thresholds]", "[thresholds", "must be TOML"),
    ],
)
def test_rules_of_ones_own_are_checked(old: str, new: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.replace("[rules]", r"\[rules\]")):
        fuzzy.read(TEXT.replace(old, new, 1))


def test_the_slot_that_is_worst_off_decides() -> None:
    found = inputs([EASY, replace(EASY, cpu=0.99), EASY])
    assert found is not None and found.keys() == set(INPUTS)
    assert found["use"] == 0.99
    assert inputs([]) is None


def test_a_queue_is_judged_by_the_work_in_it_and_by_where_it_is_going() -> None:
    # given 100 events/s when busy all the time: 500 events are 5 s of work, and 20 more per second add 2 s in 10 s
    slot = SlotSample(cpu=1, memory=0, busy=1, blocked=0, arrivals=120, answers=100, backlog=500)
    assert (inputs([slot]) or {})["queue"] == pytest.approx(7)
    # when answers have no room downstream half of the time, this operator causes half of the queue
    assert (inputs([replace(slot, blocked=0.5)]) or {})["queue"] == pytest.approx(3.5)
    # when nothing is answered although events wait, it is as bad as possible
    assert (inputs([replace(slot, answers=0)]) or {})["queue"] == float("inf")


def test_a_queue_whose_callers_are_held_back_says_nothing_of_what_waits_in_them() -> None:
    # given a slot that is always busy, and 0.4 s of work in its queue, which does not grow
    slot = SlotSample(cpu=1, memory=0, busy=1, blocked=0, arrivals=100, answers=100, backlog=40)

    def seen(held: float, use: float = 1.0) -> tuple[float, str]:
        found = inputs([EASY, replace(slot, cpu=use, busy=use, backlog=40 * use, held=held)]) or {}
        return found["queue"], MODEL.thresholds.verdict(fuzzy.evaluate(MODEL, found).load)

    assert seen(0.0) == (pytest.approx(0.4), "nothing")
    assert seen(0.5) == (pytest.approx(0.4), "nothing")
    assert seen(0.75) == (pytest.approx(5.0), "scale out")
    assert seen(1.0) == (pytest.approx(10.0), "scale out")
    # when it works for six tenths of the time, and its callers wait for it meanwhile, it keeps up
    assert seen(0.6, use=0.6) == (pytest.approx(2.0), "nothing")
    # when it hardly works, they wait for something else
    assert seen(1.0, use=0.2) == (pytest.approx(10.0), "nothing")


def steps(loads: list[float | None], patience: Hysteresis) -> list[Step]:
    watch, taken = OperatorHistory(), []
    for x in loads:
        watch, what = step(watch, x, MODEL.thresholds, patience)
        taken.append(what)
    return taken


def test_it_prepares_takes_over_stops_and_scales_in() -> None:
    p = Hysteresis(confirm=1, calm=3, settle=0)
    assert steps([50, 65, 70, 80], p) == ["none", "prepare", "none", "take_over"]
    assert steps([65, 58, 54], p) == ["prepare", "none", "stop_prepared"]  # 58 is in the band below 60 in which nothing changes
    assert steps([10, 10, 10, 10], p) == ["none", "none", "scale_in", "none"]
    assert steps([90], p) == ["take_over"]


def test_a_single_reading_is_no_reason_for_a_step() -> None:
    assert set(steps([50, 90, 50, 90, 50, 10, 50] * 5, Hysteresis())) == {"none"}


def test_what_was_not_measured_is_no_reason_to_scale_in_or_out() -> None:
    assert set(steps([10, 10, None] * 20, Hysteresis(calm=3))) == {"none"}
    assert set(steps([None] * 100, Hysteresis())) == {"none"}


def test_a_load_that_oscillates_does_not_make_it_flap() -> None:
    # given a load that falls to idle and rises to overload every five minutes, in 10 s intervals
    day = ([90.0] * 30 + [10.0] * 29) * 24
    taken = [s for s in steps(day, Hysteresis(calm=30)) if s != "none"]
    assert "scale_in" not in taken
