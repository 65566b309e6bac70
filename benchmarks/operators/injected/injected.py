"""An operator whose events say what they cost: processor time, time waiting for something else, and resident memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

_MB = 1 << 20
_held: list[bytes] = []


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB


def _reach(resident_mb: int) -> None:
    """Hold so much that this process is that large, 0: nothing."""
    if not resident_mb:
        _held.clear()
    while _resident_mb() < resident_mb:
        _held.append(os.urandom(_MB))


@operator
def run(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The ids, after all of that."""
    _reach(pc.max(batch.column("resident_mb")).as_py() or 0)
    until = time.thread_time() + pc.sum(batch.column("cpu_us")).as_py() / 1e6
    while time.thread_time() < until:
        pass
    time.sleep(pc.sum(batch.column("wait_us")).as_py() / 1e6)
    return {"id": batch.column("id")}
