"""`python -m benchmarks all`: the runs whose figures the documents show, each on a quiet machine, all on one commit."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import record, tables
from benchmarks.harness.bringup import say
from benchmarks.harness.tables import Section

Run = tuple[str, ...]
DOCKER, SIMULATED = ("--driver", "docker"), "--simulated"
# Suites and options; docs/performance.md or docs/papers.md has a place for each.
RUNS: tuple[Run, ...] = (
    ("demo",),
    ("micro_batch",),
    ("throughput",),
    ("throughput", *DOCKER),
    ("latency",),
    ("latency", *DOCKER),
    ("real_time",),
    ("codec",),
    ("backoff",),
    ("update",),
    *(("update", "--state-mb", size) for size in ("1", "100", "1000")),
    ("redeploy",),
    ("diff",),
    ("validation",),
    ("state",),
    ("second_store",),
    ("languages",),
    ("registry_layers",),
    ("recovery",),
    ("migration",),
    ("between_nodes",),
    ("remote",),
    ("scale_out",),
    ("balance",),
    ("balance", SIMULATED),
    ("bottleneck",),
    ("bottleneck", SIMULATED),
    ("elasticity",),
    ("elasticity", SIMULATED),
    ("checkpoint_allocation",),
    ("exactly_once",),
)
# The suite that may be run in slices, with options that say which seeds.
SLICED = "exactly_once"
LOOK_S, TELL_S = 5.0, 60.0
# A run notes the load average once it has started, and starting adds up to 0.1, as Linux updates the average only every 5 s.
WAIT_BELOW = record.QUIET - 0.1


def is_there(run: Run, commit: str, results: Path = record.RESULTS) -> bool:
    """Whether there is a run whose figures may be shown as those of `commit`."""
    return any(tuple(made.get("command", ())) == run and not record.unfit(made, commit) for made in record.runs(run[0], results))


def has(made: record.Record) -> bool:
    """Whether this record is of one of the runs, or a slice of the one that is made in slices."""
    return made["name"] == SLICED or tuple(made.get("command", ())) in RUNS


def make(runs: Sequence[Run], commit: str, wait_s: float, *, dry_run: bool = False) -> bool:
    """Make the missing runs, and print a table of all. False if one is still missing at the end."""
    rows = []
    for run in runs:
        began = time.monotonic()
        if is_there(run, commit):
            result = "was there"
        elif dry_run:
            result = "to do"
        elif not quiet(wait_s):
            result = "not made: the machine is busy"
        else:
            say(f"python -m benchmarks {' '.join(run)}")
            began = time.monotonic()
            status = _run(run)
            # Files may have been changed meanwhile, and another process may have started just before the run.
            result = "made" if is_there(run, commit) else f"exit status {status}" if status else "made, but its figures may not be shown"
        rows.append((" ".join(run), f"{time.monotonic() - began:.0f}", result))
    tables.show([Section(f"Runs of commit {commit}", ("run", "s", "result"), rows)])
    return all(is_there(run, commit) for run in runs)


def _run(run: Run) -> int:
    """Make a run in a process of its own, and return its exit status. An interrupted run stops all that it started before this returns."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks", *run]) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def quiet(wait_s: float, load_now: Callable[[], float] = lambda: os.getloadavg()[0]) -> bool:
    """Wait until the machine's load average is below WAIT_BELOW; False after `wait_s`."""
    began, told = time.monotonic(), -math.inf
    while (load := load_now()) >= WAIT_BELOW:
        now = time.monotonic()
        if now - began >= wait_s:
            return False
        if now - told >= TELL_S:
            say(f"load average {load:.2f}; waiting until it is below {WAIT_BELOW:g}")
            told = now
        time.sleep(LOOK_S)
    return True
