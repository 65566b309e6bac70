"""A canary's conditions: their meaning, and the errors for texts that are not a condition."""

from __future__ import annotations

import pytest

from udo_protocol.errors import UsageError
from udo_protocol.registry.canary import Condition, Measured, share_of_groups, verdict

GOOD = Measured(events=100, frames=10, errors=0, p50_ms=1, p99_ms=2)


@pytest.mark.parametrize(
    "text", ["", "errors", "errors=0", "errors>x", "error>0", "p99_ms>-1", "p99_ms>5ms", "errors>>0", "errors>0;p50_ms>1"]
)
def test_what_is_no_condition_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(UsageError, match="expected MEASURE>NUMBER .* events, errors, error_rate, p50_ms, p99_ms"):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("text", "measured", "holds"),
    [
        ("errors>0", Measured(errors=1), True),
        ("errors > 1", Measured(errors=1), False),
        ("errors>=1", Measured(errors=1), True),
        ("error_rate>0.49", Measured(frames=1, errors=1), True),
        ("error_rate>0.5", Measured(frames=1, errors=1), False),
        ("error_rate>=0", GOOD, True),
        ("p99_ms>1.5", GOOD, True),
        ("p99_ms>2", GOOD, False),
        ("p50_ms<2", GOOD, True),
        ("p50_ms<2", Measured(), False),  # without a frame there is no time
        ("p99_ms<=2", GOOD, True),
        ("events>99", GOOD, True),
    ],
)
def test_a_condition_holds_as_it_reads(text: str, measured: Measured, holds: bool) -> None:
    assert Condition.parse(text).holds(measured, at_end=False) is holds


def test_a_condition_is_written_as_it_was_read() -> None:
    for text in ("events>=123456789012345", "error_rate>0.000000001", "p99_ms<=5"):
        assert str(Condition.parse(f" {text.replace('>', ' > ') if '=' not in text else text} ")) == text


def test_too_few_events_mean_something_only_at_the_end() -> None:
    condition = Condition.parse("events<1000")
    assert (condition.holds(GOOD, at_end=False), condition.holds(GOOD, at_end=True)) == (False, True)
    assert verdict([], 101, GOOD, at_end=False) == ""
    assert "saw 100 events, at least 101" in verdict([], 101, GOOD, at_end=True)
    assert verdict(["errors>0", "p99_ms>5"], 1, GOOD, at_end=True) == ""


def test_a_verdict_names_the_condition_and_what_was_measured() -> None:
    said = verdict(["errors>0", "p99_ms>1.5"], 1, GOOD, at_end=False)
    assert said == "p99_ms>1.5 holds (p99_ms = 2): 100 events, 0 errors, p50 1.00 ms, p99 2.00 ms"


def test_counts_of_nodes_are_summed_and_the_highest_time_counts() -> None:
    both = Measured.together([GOOD, Measured(events=1, frames=1, errors=2, p50_ms=9, p99_ms=1)])
    assert both == Measured(events=101, frames=11, errors=2, p50_ms=9, p99_ms=2)
    assert Measured.together([]) == Measured()


def test_different_means_nothing_until_something_was_compared_and_then_decides() -> None:
    none, some = Measured(events=5, frames=5), Measured(events=5, frames=5, compared=4, different=1)
    assert verdict(["different<1"], 1, none, at_end=False) == ""
    assert "so it is unknown whether they differ" in verdict(["different>0"], 1, none, at_end=True)
    assert "different>0 holds (different = 1)" in verdict(["different>0"], 1, some, at_end=False)
    assert verdict(["different>1"], 1, some, at_end=True) == ""


def test_a_share_of_the_key_groups_is_never_empty_is_spread_and_the_same_everywhere() -> None:
    assert share_of_groups(100) == list(range(128))
    assert share_of_groups(50) == list(range(0, 128, 2))
    assert share_of_groups(3) == [0, 32, 64, 96]
    assert share_of_groups(0.01) == [0]
    assert [len(share_of_groups(p)) for p in (1, 10, 25, 99.9)] == [1, 13, 32, 128]
    for percent in range(1, 101):
        groups = share_of_groups(percent)
        assert groups == sorted(set(groups)) and groups[-1] < 128
