"""Changes under a keyed load, each in the middle of an epoch of its own, and the client's view of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.bringup import wait_until
from benchmarks.harness.quantiles import Quantiles, percentile, quantiles
from benchmarks.harness.rules import InvalidRun, check_sequence
from benchmarks.loads.keyed_load import KeyedLoad

SETTLE_S = 0.3
_ANSWERED_S = 120.0


@dataclass(frozen=True)
class Seen:
    """The client's view of a change: the longest gap between answers, the length of the change, and the latencies of events meanwhile."""

    pause_ms: float
    completion_ms: float
    p99_ms: float
    worst_ms: float
    normal_p99_ms: float  # before the change


@dataclass(frozen=True)
class Moved:
    """Quantiles over moves of one kind."""

    pause_ms: Quantiles
    completion_ms: Quantiles

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> Moved:
        """The quantiles of these moves."""
        return cls(quantiles([s.pause_ms for s in seen]), quantiles([s.completion_ms for s in seen]))


class Changes:
    """A load, and the changes that are made under it. The seed determines the events; it advances with each change."""

    def __init__(self, load: KeyedLoad, seed: int) -> None:
        self.load, self._seed = load, seed

    def during(self, change: Callable[[], object], replay: int = 0) -> Seen:
        """Make the change in the middle of an epoch, once `replay` of its events are answered."""
        load, begun, stop = self.load, threading.Event(), threading.Event()
        failed: list[Exception] = []
        first = len(load.at)
        self._seed += 1

        def run() -> None:
            try:
                load.run_one(replay, begun, stop, self._seed)
            except Exception as e:  # makes the run invalid
                failed.append(e)
                begun.set()

        target, thread = load.sent + replay, threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: bool(failed) or (begun.is_set() and load.answered >= target), _ANSWERED_S, "the events before the change")
            time.sleep(SETTLE_S)
            asked = time.perf_counter()
            change()
            done = time.perf_counter()
            time.sleep(SETTLE_S)
        finally:
            stop.set()
            thread.join()
        if failed:
            raise InvalidRun(f"the load ended with {type(failed[0]).__name__}: {failed[0]}") from failed[0]
        return self._seen(first, asked, done)

    def _seen(self, first: int, asked: float, done: float) -> Seen:
        load = self.load
        at, batches = np.array(load.at[first:]), load.batches[first:]
        around = at[(at >= asked) & (at <= done + SETTLE_S)]
        if len(around) < 2:
            raise InvalidRun(f"expected answers during a change of {done - asked:.3f} s, got {len(around)} batches")
        ids = np.concatenate([b.column("id").to_numpy() for b in batches])
        oldest = int(ids.min())
        due = np.array(load.due[oldest:])[ids - oldest]
        latency = (np.repeat(at, [b.num_rows for b in batches]) - due) * 1000
        meanwhile, before = np.sort(latency[(due >= asked) & (due <= done)]), np.sort(latency[(due < asked) & (due > asked - SETTLE_S)])
        return Seen(
            float(np.diff(around).max()) * 1000,
            (done - asked) * 1000,
            percentile(meanwhile, 0.99) if len(meanwhile) else 0.0,
            float(meanwhile[-1]) if len(meanwhile) else 0.0,
            percentile(before, 0.99) if len(before) else 0.0,
        )

    def judge(self) -> None:
        """InvalidRun unless every event was answered once, in order, with the right count."""
        check_sequence(self.load.column("id"), self.load.sent).require_clean(f"moves of {self.load.deployment}")
        self.load.require_counts()
