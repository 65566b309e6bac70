"""The keyed load sends what it was asked for, and knows when each event was due."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.loads.changes import Changes
from benchmarks.loads.keyed_load import BACK, FILL_ROWS, FRAME_S, KeyedLoad
from benchmarks.suites import between_nodes, migration, update
from udo_protocol.errors import UsageError

FRAMES = 4


class Echo(KeyedLoad):
    """A load whose events are answered at once; `stop` is set after some frames of an epoch."""

    stop = threading.Event()

    def _exchange(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for n, batch in enumerate(batches, 1):
            ones = np.ones(batch.num_rows, np.int64)
            yield pa.record_batch([batch.column("id"), batch.column("card"), ones, ones], schema=BACK)
            if n == FRAMES:
                self.stop.set()


def epoch(load: Echo, before: int) -> None:
    load.stop.clear()
    load.run_one(before, threading.Event(), load.stop, 1)


@pytest.mark.parametrize("rate", [300, 100, 1_000_001])
def test_a_rate_that_cannot_be_sent_is_refused_before_anything_starts(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("the platform was started")

    for suite in (migration, update):
        monkeypatch.setattr(suite, "platform", started)
    monkeypatch.setattr(between_nodes, "nodes", started)
    with pytest.raises(UsageError, match=f"multiple of 200 events/s, got {rate}"):
        migration.run(quick=True, driver="process", seed=1, rate=rate)
    with pytest.raises(UsageError, match=f"multiple of 200 events/s, got {rate}"):
        between_nodes.run(quick=True, driver="process", seed=1, rate=rate)
    with pytest.raises(UsageError, match=f"multiple of 200 events/s, got {rate}"):
        update.run(quick=True, driver="process", seed=1, state_mb=1, rate=rate)


@pytest.mark.parametrize("rate", [6_000, 10_000])
def test_each_answer_is_set_against_the_time_at_which_its_event_was_due(rate: int) -> None:
    # given a first epoch, and one of a move whose frames before it are no multiple of those sent at this rate
    load = Echo("", "d", 10, 1, rate)
    changes = Changes(load, 1)
    epoch(load, 0)
    first, sent = len(load.at), load.sent
    epoch(load, FILL_ROWS)
    # when
    seen = changes._seen(first, load.at[first], load.at[-1])
    # then each frame's events were due FRAME_S after those of the frame before it, and came right after that
    assert np.diff(load.due[sent + FILL_ROWS :: rate // 200]) == pytest.approx(FRAME_S)
    assert len(load.due) == load.sent
    assert seen.pause_ms > 0


def test_a_frame_that_is_made_but_not_sent_was_never_due() -> None:
    load = Echo("", "d", 10, 1, 200)
    epoch(load, 0)
    epoch(load, 0)
    assert len(load.due) == load.sent == 2 * FRAMES
