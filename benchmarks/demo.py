"""The README's main job unchanged, `udo demo`, run several times: its printed figures, and Spark's own timeline of its micro-batches."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.bringup import say
from benchmarks.rules import InvalidRun
from benchmarks.tables import Section, count

TIMEOUT_S = 240.0
REPEATS, QUICK_REPEATS = 5, 1


def run(*, quick: bool, driver: str, seed: int) -> dict[str, Any]:
    """Return medians over the runs; steps of a micro-batch have Spark's names (StreamingQueryProgress.durationMs)."""
    repeats = QUICK_REPEATS if quick else REPEATS
    reports = []
    for i in range(repeats):
        reports.append(_once(driver, seed, quick))
        say(f"{i + 1} of {repeats} runs")
    batches = [r["micro_batch_ms"] for r in reports]
    return {
        "repeats": repeats,
        "rows": reports[0]["events_in"],
        "events_per_s": statistics.median(r["events_per_s"] for r in reports),
        "micro_batch_ms": {
            "p50": statistics.median(b["p50"] for b in batches),
            "steps": {step: statistics.median(b["steps"][step] for b in batches) for step in batches[0]["steps"]},
        },
        **{kind: sum(r[kind] for r in reports) for kind in ("lost", "duplicated", "reordered")},
    }


def _once(driver: str, seed: int, quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "udo_cli", "demo", "--json", "--driver", driver, "--seed", str(seed)]
    if quick:
        command += ["--seconds", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise InvalidRun(f"udo demo ended with {done.returncode}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def sections(made: dict[str, Any]) -> list[Section]:
    """The figures, and the times of a micro-batch's steps."""
    batch = made["micro_batch_ms"]
    figures = [
        ("events/s", count(made["events_per_s"])),
        ("micro-batch p50, ms", f"{batch['p50']:,.0f}"),
        ("lost / duplicated / reordered", f"{made['lost']} / {made['duplicated']} / {made['reordered']}"),
    ]
    steps = sorted(batch["steps"].items(), key=lambda step: -step[1])
    return [
        Section(f"`udo demo`, {made['rows']:,} rows, median of {made['repeats']}", ("", "figure"), figures),
        Section("One micro-batch by Spark's own clock", ("step", "p50, ms"), [(name, f"{ms:,.0f}") for name, ms in steps]),
    ]
