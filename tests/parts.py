"""Runs the tests in parts, one after the other: `python -m tests.parts [--deep] [PART ...]`, which is `make test` and `make deep`.

Parts do not run beside each other: with two cores, two suites of real processes each make the other's waits late. What fails is run once
more, alone, after all others. If it passes then, it is unsteady: printed, noted in build/tests/unsteady.jsonl, to be mended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "tests"
# The quick ones first: what they find needs no wait.
PARTS = {
    "units": ["gate", "engine", "model", "elasticity", "protocol", "packaging"],
    "runtime": ["runtime", "benchmarks"],
    "registry": ["registry"],
    "nodes": ["node_manager"],
    "spark": ["udo_interface"],
    "cli": ["cli"],
    "languages": ["operators"],
    "docs": ["docs"],
    "chaos": ["chaos", "mutations", "attacks"],
}
# More than these failures are no accidents.
MOST_UNSTEADY = 3
PASSED, SOME_FAILED = 0, 1


@dataclass
class Outcome:
    """How a part ended; `failed` are those of the first run."""

    part: str
    seconds: float
    tests: int
    skipped: int
    failed: list[str]
    broken: str = ""
    unsteady: list[str] = field(default_factory=list)


def run(part: str, deep: bool) -> Outcome:
    """The whole part, in a process of its own."""
    xml = BUILD / f"{part}.xml"
    xml.unlink(missing_ok=True)
    begun = time.monotonic()
    print(f"\n# {part}", flush=True)
    status = _pytest(part, [f"tests/{folder}" for folder in PARTS[part]], deep, f"--junitxml={xml}", "--cache-clear")
    took = time.monotonic() - begun
    if status not in (PASSED, SOME_FAILED):
        return Outcome(part, took, 0, 0, [], f"pytest ended with {status}")
    suite = ET.parse(xml).getroot()[0].attrib
    failed = sorted(json.loads((_cache(part) / "v" / "cache" / "lastfailed").read_text())) if status == SOME_FAILED else []
    return Outcome(part, took, int(suite["tests"]), int(suite["skipped"]), failed)


def again(outcome: Outcome, deep: bool) -> None:
    """Each failed test in a process of its own."""
    for test in outcome.failed:
        print(f"\n# once more, alone: {test}", flush=True)
        if _pytest(outcome.part, [test], deep) == PASSED:
            outcome.unsteady.append(test)
            with (BUILD / "unsteady.jsonl").open("a") as kept:
                kept.write(json.dumps({"test": test, "beside_others": "failed", "alone": "passed", "commit": _commit()}) + "\n")


def _pytest(part: str, what: list[str], deep: bool, *more: str) -> int:
    environment = {**os.environ, **({"UDO_DEEP": "1"} if deep else {})}
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={_cache(part)}", *more, *what]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _cache(part: str) -> Path:
    return BUILD / f"{part}.cache"


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all passed, or all but a few that passed alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *PARTS], help=f"of {', '.join(PARTS)}; without one: all")
    parser.add_argument("--deep", action="store_true", help="the tests marked `long`, too")
    asked = parser.parse_args(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    outcomes = [run(part, asked.deep) for part in asked.parts or PARTS]
    if sum(len(o.failed) for o in outcomes) <= MOST_UNSTEADY:
        for outcome in outcomes:
            again(outcome, asked.deep)
    return report(outcomes)


def report(outcomes: list[Outcome]) -> int:
    """A line for each part, what is unsteady, what failed; the status to end with."""
    print(f"\n{'part':<12}{'seconds':>9}{'tests':>8}{'skipped':>9}{'failed':>8}{'unsteady':>10}")
    red: list[str] = []
    for o in outcomes:
        failed = [test for test in o.failed if test not in o.unsteady]
        print(f"{o.part:<12}{o.seconds:>9.0f}{o.tests:>8}{o.skipped:>9}{len(failed):>8}{len(o.unsteady):>10}  {o.broken}")
        red += failed + ([f"{o.part}: {o.broken}"] if o.broken else [])
    for test in (test for o in outcomes for test in o.unsteady):
        print(f"unsteady: {test} failed beside others and passed alone")
    for test in red:
        print(f"FAILED {test}")
    print(f"{sum(o.tests - o.skipped - len(o.failed) + len(o.unsteady) for o in outcomes)} passed, {len(red)} failed", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
