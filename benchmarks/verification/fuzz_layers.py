"""Mutated layers against the function that unpacks them on every node: each is refused, or unpacked exactly, within bounds.

A violation names its seed: `python -m benchmarks.verification.fuzz_worker EMPTY_DIRECTORY SEED 1` shows it again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.bringup import say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section

LAYERS, QUICK_LAYERS = 50_000, 5_000
SAY_EVERY = 10_000
# The distance between the first layers of two of the command's seeds, so that no two runs share layers.
SEEDS = 10_000_000


@dataclass(frozen=True)
class Figures:
    """The numbers of layers by result, and of refused ones by reason."""

    layers: int
    unpacked: int
    refused: int
    reasons: dict[str, int]
    slowest_cpu_ms: float
    peak_mb: int


def run(*, quick: bool, driver: str, seed: int, layers: int = 0) -> Figures:
    """Try this many `layers` (default: 50,000; quick: 5,000). InvalidRun at the first violation; no platform is needed."""
    count = layers or (QUICK_LAYERS if quick else LAYERS)
    results, reasons, slowest_ms, peak_mb = Counter[str](), Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory(prefix="udo-fuzz-") as name:
        command = [sys.executable, "-m", "benchmarks.verification.fuzz_worker", name, str(seed * SEEDS), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                said = json.loads(line)
                if "violation" in said:
                    raise InvalidRun(f"layer {said['seed']}: {said['violation']}")
                results[said["result"]] += 1
                reasons.update([_kind(said["why"])] if said["why"] else [])
                slowest_ms, peak_mb = max(slowest_ms, said["ms"]), said["peak_mb"]
                if results.total() % SAY_EVERY == 0:
                    say(f"{results.total()} layers: {dict(results)}")
    if results.total() != count:
        raise InvalidRun(f"the worker ended with status {worker.returncode} after {results.total()} of {count} layers")
    return Figures(count, results["unpacked"], results["refused"], dict(reasons.most_common()), round(slowest_ms, 1), peak_mb)


def _kind(why: str) -> str:
    """Return a reason without the parts that are particular to one layer."""
    return re.sub(r"[0-9]+", "N", re.sub(r"""b?(['"]).*\1""", "...", why))[:80]


def sections(f: Figures) -> list[Section]:
    """The table of results and reasons."""
    reasons = {"unpacked, as tarfile reads it": f.unpacked} | {f"refused: {why}": n for why, n in f.reasons.items()}
    note = f"slowest: {f.slowest_cpu_ms:g} ms of processor time; memory: {f.peak_mb} MiB"
    return [Section(f"{f.layers} mutated layers", ("what came of it", "layers"), [(why, str(n)) for why, n in reasons.items()], note)]
