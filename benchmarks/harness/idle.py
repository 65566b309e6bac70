"""Processor time of processes that have nothing to do, from the scheduler's own nanosecond counters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


def run_ns(pid: int) -> int:
    """The nanoseconds that all threads of a process have run."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def cpu_percent(parts: Mapping[str, Sequence[psutil.Process]], seconds: float) -> dict[str, float]:
    """Measure for `seconds` the share of one core that each part uses, in percent."""
    before = {name: sum(run_ns(p.pid) for p in found) for name, found in parts.items()}
    started = time.perf_counter()
    time.sleep(seconds)
    passed_ns = (time.perf_counter() - started) * 1e9
    return {name: round((sum(run_ns(p.pid) for p in parts[name]) - before[name]) / passed_ns * 100, 3) for name in parts}
