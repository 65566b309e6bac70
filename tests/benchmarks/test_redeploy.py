"""The benchmark of redeployment notices lost and doubled events, also together, and forgets no repeated micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.rules import InvalidRun
from benchmarks.suites import redeploy
from benchmarks.suites.redeploy import ROWS_PER_BATCH, Done, Stream, summed


def stream(*done: Done) -> Stream:
    nothing: Any = None
    made = Stream(nothing, nothing, Path())
    made.done += done
    return made


def batch(epoch: int, at: float = 0.0, change: dict[int, int] | None = None) -> Done:
    ids = list(range(epoch * ROWS_PER_BATCH, (epoch + 1) * ROWS_PER_BATCH))
    for place, value in (change or {}).items():
        ids[place] = value
    return Done(epoch, at, summed(ids), frozenset([1]))


def test_each_event_once_is_clean_also_if_a_micro_batch_was_repeated() -> None:
    stream(batch(0), batch(1), batch(1), batch(2)).require_clean()


def test_one_event_lost_and_another_doubled_are_noticed() -> None:
    with pytest.raises(InvalidRun, match="each of the"):
        stream(batch(0, change={5: 6})).require_clean()


def test_a_wrong_micro_batch_is_noticed_though_it_was_repeated_rightly() -> None:
    with pytest.raises(InvalidRun, match="epoch 1"):
        stream(batch(0), batch(1, change={5: 6}), batch(1)).require_clean()


def test_a_micro_batch_that_never_came_is_noticed() -> None:
    with pytest.raises(InvalidRun, match=r"epochs \[1\] are missing"):
        stream(batch(0), batch(2)).require_clean()


def test_the_gap_counts_from_a_micro_batch_that_was_done_and_came_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a change asked for at 10 s, before which epoch 1 was done, but not committed: it comes again, from version 2
    monkeypatch.setattr(Stream, "_settle", lambda _: None)
    monkeypatch.setattr(redeploy.time, "perf_counter", lambda: 10.0)
    again = Done(1, 12.0, batch(1).ids, frozenset([2]))
    assert stream(batch(0, 9.0), batch(1, 9.5), again).gap_ms("2", lambda: None) == pytest.approx(2500)
