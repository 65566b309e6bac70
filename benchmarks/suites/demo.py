"""The README's main job unchanged, `udo demo`, run several times: its printed figures, and Spark's own timeline of its micro-batches."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.harness import record
from benchmarks.harness.bringup import say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section, count

TIMEOUT_S = 240.0
REPEATS, QUICK_REPEATS = 7, 1
# More than a machine of two cores can answer: the rate of its answers is the demo's throughput.
FULL_RATE, FULL_RATE_REPEATS = 400_000, 7


@dataclass(frozen=True)
class MicroBatch:
    """ms of a micro-batch, whole and by step."""

    p50: float
    steps: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """The part of the output of `udo demo --json` that is needed here."""

    events_in: int
    events_per_s: float
    micro_batch_ms: MicroBatch
    lost: int
    duplicated: int
    reordered: int


@dataclass(frozen=True)
class Figures:
    """Medians over the repeats; lost, duplicated and reordered events of all runs. `at_full_rate`: events per second when more wait."""

    repeats: int
    rows: int
    events_per_s: float
    micro_batch_ms: MicroBatch
    lost: int
    duplicated: int
    reordered: int
    at_full_rate: float | None = None


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Return medians over the runs; steps of a micro-batch have Spark's names (StreamingQueryProgress.durationMs)."""
    repeats = QUICK_REPEATS if quick else REPEATS
    reports = []
    for i in range(repeats):
        reports.append(_once(driver, seed, *(["--seconds", "8"] if quick else [])))
        say(f"{i + 1} of {repeats} runs")
    fast = []
    for i in range(0 if quick else FULL_RATE_REPEATS):
        fast.append(_once(driver, seed, "--rate", str(FULL_RATE)))
        say(f"{i + 1} of {FULL_RATE_REPEATS} runs at {FULL_RATE:,} rows a second")
    batches = [r.micro_batch_ms for r in reports]
    return Figures(
        repeats=repeats,
        rows=reports[0].events_in,
        events_per_s=statistics.median(r.events_per_s for r in reports),
        micro_batch_ms=MicroBatch(
            p50=statistics.median(b.p50 for b in batches),
            steps={step: statistics.median(b.steps[step] for b in batches) for step in batches[0].steps},
        ),
        lost=sum(r.lost for r in (*reports, *fast)),
        duplicated=sum(r.duplicated for r in (*reports, *fast)),
        reordered=sum(r.reordered for r in (*reports, *fast)),
        at_full_rate=statistics.median(r.events_per_s for r in fast) if fast else None,
    )


def _once(driver: str, seed: int, *options: str) -> _Report:
    command = [sys.executable, "-m", "udo_cli", "demo", "--json", "--driver", driver, "--seed", str(seed), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            process.terminate()  # not killed: it stops the platform that it started
            process.communicate()
            raise
    if process.returncode:
        raise InvalidRun(f"udo demo ended with {process.returncode}: {errors[-2000:]}")
    return record.decode(_Report, json.loads(said))


def sections(f: Figures) -> list[Section]:
    """The figures, and the times of a micro-batch's steps."""
    full_rate = [] if f.at_full_rate is None else [(f"events/s, `--rate {FULL_RATE}`", count(f.at_full_rate))]
    figures = [
        ("events/s", count(f.events_per_s)),
        *full_rate,
        ("micro-batch p50, ms", f"{f.micro_batch_ms.p50:,.0f}"),
        ("lost / duplicated / reordered", f"{f.lost} / {f.duplicated} / {f.reordered}"),
    ]
    steps = sorted(f.micro_batch_ms.steps.items(), key=lambda step: -step[1])
    return [
        Section(f"`udo demo`, {f.rows:,} rows, median of {f.repeats}", ("", "figure"), figures),
        Section("One micro-batch by Spark's own clock", ("step", "p50, ms"), [(name, f"{ms:,.0f}") for name, ms in steps]),
    ]
