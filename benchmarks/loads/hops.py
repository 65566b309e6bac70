"""The hop between an engine and its operator's process by itself: processor time per frame of a vectorised filter, through shared memory
and through the socket alone, measured in turn with the same filter in this process."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.harness.rules import InvalidRun
from benchmarks.operators.keep.keep import THRESHOLD, keep
from udo_cli.conformance.player import Player, starting

_ROWS, _TURNS, _FRAMES, _WARM = 10_000, 9, 100, 300
_REPLY_S = 30.0
SCHEMA = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("amount", pa.float64()), ("at", pa.int64())])


def filter_cpu_us(command: Sequence[str], seed: int) -> dict[str, float]:
    """Measure the processor time of both processes per frame of 10,000 events, in µs: `shared` (if supported), `socket`, `in_process`."""
    rng, numbers = np.random.default_rng(seed), np.arange(_ROWS)
    columns = [pa.array(c) for c in (numbers, rng.integers(0, 1000, _ROWS), rng.random(_ROWS) * 2 * THRESHOLD, numbers)]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    wanted = keep(batch)
    with ExitStack() as stack:
        ways: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], int]] = {"in_process": (keep, 0)}
        for way, shares in (("shared", True), ("socket", False)):
            player = Player(starting(command), "filter", {}, _REPLY_S)
            stack.callback(player.close)
            player.start((SCHEMA, SCHEMA), shares=shares)
            if player.shares == shares:
                ways[way] = (player.data, player.process.pid)
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for way, (ask, _) in ways.items():
            if not all(ask(batch).equals(wanted) for _ in range(_WARM)):
                raise InvalidRun(f"{' '.join(command)} ({way}) answers a filter otherwise than Python")
        for _ in range(_TURNS):
            for way, (ask, pid) in ways.items():
                before = _cpu_us(pid)
                for _ in range(_FRAMES):
                    ask(batch)
                taken[way].append((_cpu_us(pid) - before) / _FRAMES)
    return {way: round(statistics.median(us), 1) for way, us in taken.items()}


def _cpu_us(pid: int) -> float:
    """The processor time so far of this process and, unless `pid` is 0, of process `pid` and its children with all their threads."""
    others = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []
    return time.process_time() * 1e6 + sum(map(_of_threads, (p.pid for p in others)))


def _of_threads(pid: int) -> float:
    total_ns = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total_ns += int(file.read().split()[0])
    return total_ns / 1e3
