"""An operator whose events state their cost: processor time, waiting time, and resident memory."""

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
    """Hold memory until this process has `resident_mb` MB; 0: release it all."""
    if not resident_mb:
        _held.clear()
    while _resident_mb() < resident_mb:
        _held.append(os.urandom(_MB))


@operator
def run(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Cause the costs of all events, then return their ids."""
    _reach(pc.max(batch.column("resident_mb")).as_py() or 0)
    until = time.thread_time() + pc.sum(batch.column("cpu_us")).as_py() / 1e6
    while time.thread_time() < until:
        pass
    time.sleep(pc.sum(batch.column("wait_us")).as_py() / 1e6)
    return {"id": batch.column("id")}
