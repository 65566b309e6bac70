"""Runs the tests in parts: `make test` is the gate, `make deep` runs all tests. `python -m tests.parts [--deep] [PART ...]`.

A part is a process of its own, and a few run at once (`--jobs`): most tests wait for processes, not for the processor. A failed test runs
once more, alone, after all parts. If it passes then, it is unsteady: it is reported, and remembered in a file of this user's, and its cause
has to be fixed. More than a few unsteady tests, or one that was already unsteady in one of the last runs, make the run red.

The deep parts need not be run in one go: a part that has passed on this very commit is not run again. The table at the end has all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from platformdirs import user_state_path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "tests"
# The runs of the gate by this user, in any clone, each with its unsteady tests.
RUNS = user_state_path("udo-spark") / "gate.jsonl"
# Most tests wait for processes; three parts at once keep two cores 96 % busy.
JOBS = 3
MOST_UNSTEADY = 3
REMEMBERED_RUNS = 5
# The number of characters kept of the text of an unsteady test's failure: nothing else shows its cause.
TOLD_CHARS = 6000
PASSED, SOME_FAILED = 0, 1
_printing = threading.Lock()


@dataclass(frozen=True)
class Part:
    """The work of one process: pytest on these paths below tests/ (`marks`: its -m; `without`: its --ignore-glob), or a module."""

    paths: tuple[str, ...] = ()
    marks: str = "not docker"
    without: tuple[str, ...] = ()
    module: tuple[str, ...] = ()


_TRIALS = tuple(f"node_manager/test_{name}*.py" for name in ("canary", "diff", "recording", "trials"))
_REPLICAS = tuple(f"node_manager/test_{name}*.py" for name in ("across", "application", "drain", "moves", "replicas", "scale_out", "two_"))
_SCALING = tuple(
    f"node_manager/test_{name}*.py" for name in ("controllers", "idle", "keyed_slots", "metering", "modes", "observe", "slots")
)
_CLUSTERS = tuple(
    f"udo_interface/test_{name}.py"
    for name in (
        "applications",
        "cluster",
        "keyed_failures",
        "node_away",
        "over_nodes",
        "second_store",
        "store_s3",
        "three_hosts",
        "two_nodes",
    )
)
_KEYED = tuple(
    f"udo_interface/test_{name}.py" for name in ("drawn_values", "inputs", "jvm_keyed", "keyed", "keyed_slots", "keys", "store_lane")
)
_PLANS = ("udo_interface/test_plans.py",)
_SDKS = ("operators/test_cpp.py", "operators/test_sdks.py", "operators/test_history.py", "operators/test_surroundings.py")
# Tests that build images and whole platforms in Docker.
_PLATFORMS = ("cli/test_compose.py", "cli/test_demo.py", "docs/test_snippets.py", "operators/test_*.py")
# The longest parts first: the short ones fill the rest.
GATE = {
    "nodes": Part(("node_manager",), without=(*_TRIALS, *_SCALING)),
    "spark": Part(("udo_interface",)),
    "cli": Part(("cli", "attacks")),
    "languages": Part(("operators",)),
    "docker": Part((".",), "docker"),
    "registry": Part(("registry",)),
    "runtime": Part(("protocol", "runtime", "chaos", "mutations")),
    "units": Part(("gate", "engine", "model", "elasticity", "packaging", "benchmarks")),
    "scaling": Part((*_TRIALS, *_SCALING)),
    "docs": Part(("docs",)),
}
DEEP = {
    "chaos": Part(("chaos",), without=("chaos/test_broken_builds.py",)),
    "broken": Part(("chaos/test_broken_builds.py",)),
    "nodes": Part(("node_manager",), without=(*_TRIALS, *_REPLICAS, *_SCALING)),
    "trials": Part(_TRIALS),
    "replicas": Part(_REPLICAS),
    "scaling": Part(_SCALING),
    "spark": Part(("udo_interface",), without=(*_PLANS, *_CLUSTERS, *_KEYED)),
    "keyed": Part(_KEYED),
    "clusters": Part(_CLUSTERS),
    "plans": Part(_PLANS, "not docker and not drawn"),
    "drawn": Part(("udo_interface/test_plans.py",), "drawn"),
    "cli": Part(("cli",)),
    "attacks": Part(("attacks",)),
    "docs": Part(("docs",)),
    "docker": Part((".",), "docker", without=_PLATFORMS),
    "docker_platforms": Part(_PLATFORMS, "docker"),
    "languages": Part(("operators",), without=_SDKS),
    "sdks": Part(_SDKS),
    "registry": Part(("registry",)),
    "packaging": Part(("packaging", "gate", "benchmarks")),
    "units": Part(("engine", "model", "elasticity")),
    "runtime": Part(("protocol", "runtime")),
    "mutations": Part(("mutations",)),
    "faults": Part(module=("tests.mutations",)),
    "interpreters": Part(module=("tests.packaging.interpreters",)),
    "oldest_spark": Part(module=("tests.packaging.spark40",)),
}


@dataclass
class Outcome:
    """The result of a part; `failed`: tests that failed in the first run, `why`: their texts, `unsteady`: those that then passed alone."""

    part: str
    commit: str
    seconds: float = 0.0
    tests: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    broken: str = ""

    @property
    def red(self) -> list[str]:
        """The failures that make the whole run fail."""
        return [t for t in self.failed if t not in self.unsteady] + ([f"{self.part}: {self.broken}"] if self.broken else [])


class Run:
    """A run of the gate, or of deep parts, on the present checkout."""

    def __init__(self, parts: Mapping[str, Part], deep: bool, jobs: int, order: int | None = None) -> None:
        self._parts, self._deep, self._jobs, self._order = parts, deep, jobs, order
        self._commit = _commit()

    def outcomes(self, names: Iterable[str]) -> list[Outcome]:
        """Run these parts, then each failed test once more, alone."""
        pool = ThreadPoolExecutor(self._jobs)
        try:
            done = list(pool.map(self._part, names))
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C: the parts in progress have got it, too, and clean up
        if sum(len(o.failed) for o in done) <= MOST_UNSTEADY:
            for outcome in done:
                outcome.unsteady = [test for test in outcome.failed if self._passes_alone(outcome.part, test)]
        for outcome in done:
            self._keep(outcome)
        return done

    def _keep(self, outcome: Outcome) -> None:
        """Keep the outcome of a deep part that passed: it is not run again, even if the next part is interrupted."""
        if self._deep and not outcome.red:
            _kept(outcome.part).write_text(json.dumps(asdict(outcome)))

    def passed_before(self, name: str) -> Outcome | None:
        """The outcome of a deep part that has passed on this very commit."""
        if not self._deep or not self._commit or not _kept(name).exists():
            return None
        before = Outcome(**json.loads(_kept(name).read_text()))
        return before if before.commit == self._commit else None

    def _part(self, name: str) -> Outcome:
        part, begun = self._parts[name], time.monotonic()
        outcome = Outcome(name, self._commit)
        xml = BUILD / f"{name}.xml"
        xml.unlink(missing_ok=True)
        if part.module:
            status = self._process(name, [sys.executable, "-m", *part.module])
        else:
            chosen = [*_paths(part.paths), "-m", part.marks, *(f"--ignore-glob={ROOT}/tests/{p}" for p in part.without)]
            if self._order is not None:  # the order of the files, and of the tests of each
                chosen += [f"--random-order-seed={self._order}"]
            status = self._pytest(name, f"--junitxml={xml}", "--cache-clear", *chosen)
        outcome.seconds = round(time.monotonic() - begun, 1)
        if status not in (PASSED, SOME_FAILED) or (part.module and status):
            outcome.broken = f"{' '.join(part.module) or 'pytest'} ended with {status}"
        elif not part.module:
            suite = ET.parse(xml).getroot()[0].attrib
            outcome.tests, outcome.skipped = int(suite["tests"]), int(suite["skipped"])
            if status == SOME_FAILED:
                outcome.failed = sorted(json.loads((_cache(name) / "v" / "cache" / "lastfailed").read_text()))
                outcome.why = _texts(xml)
        self._keep(outcome)
        return outcome

    def _passes_alone(self, name: str, test: str) -> bool:
        return self._pytest(f"{name}: once more, alone: {test}", test, cache=name) == PASSED

    def _pytest(self, title: str, *arguments: str, cache: str = "") -> int:
        return self._process(title, [sys.executable, "-m", "pytest", "-o", f"cache_dir={_cache(cache or title)}", *arguments])

    def _process(self, title: str, command: Sequence[str]) -> int:
        """Run a command and return its status; its output is printed as one piece if others run at the same time."""
        environment = {**os.environ, **({"UDO_DEEP": "1"} if self._deep else {"UDO_GATE": "1"})}
        print(f"\n# {title}", flush=True)
        if self._jobs == 1:
            return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        with (BUILD / "output" / f"{threading.get_ident()}").open("w+") as output:
            status = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
            output.seek(0)
            with _printing:
                print(f"\n# {title}: ended with {status}\n{output.read()}", flush=True)
        return status


def _paths(patterns: Iterable[str]) -> list[str]:
    return [
        str(path.relative_to(ROOT)) for p in patterns for path in (sorted((ROOT / "tests").glob(p)) if "*" in p else [ROOT / "tests" / p])
    ]


def _texts(xml: Path) -> dict[str, str]:
    """The text of each failed test of a part: the end of pytest's report."""
    cases = [(case, told.text or "") for case in ET.parse(xml).getroot()[0] for told in case if told.tag in ("failure", "error")]
    return {f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": text[-TOLD_CHARS:] for case, text in cases}


def _cache(part: str) -> Path:
    return BUILD / f"{part}.cache"


def _kept(part: str) -> Path:
    return BUILD / f"{part}.deep.json"


def _commit() -> str:
    """The commit that is checked out; '' if files have been changed."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False).stdout:
        return ""
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()


def unsteady_again(outcomes: Iterable[Outcome]) -> list[str]:
    """The unsteady tests that were unsteady in one of the last runs already; this run is remembered, with the texts of its failures."""
    now = {test: o.why.get(test, "") for o in outcomes for test in o.unsteady}
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    former = RUNS.read_text().splitlines()[-(REMEMBERED_RUNS - 1) :] if RUNS.exists() else []
    with RUNS.open("a") as remembered:
        remembered.write(json.dumps({"at": round(time.time()), "commit": _commit(), "unsteady": list(now), "why": now}) + "\n")
    return [test for test in now if any(test in json.loads(line)["unsteady"] for line in former)]


def report(outcomes: Sequence[Outcome], remember: bool) -> int:
    """Print a line for each part, the unsteady and the failed tests; return the exit status."""
    print(f"\n{'part':<14}{'commit':<10}{'seconds':>9}{'passed':>8}{'skipped':>9}{'failed':>8}{'unsteady':>10}")
    for o in outcomes:
        passed = o.tests - o.skipped - len(o.failed)
        row = f"{o.seconds:>9.0f}{passed:>8}{o.skipped:>9}{len(o.failed) - len(o.unsteady):>8}{len(o.unsteady):>10}"
        print(f"{o.part:<14}{o.commit[:8] or 'changed':<10}{row}  {o.broken}")
    red = [test for o in outcomes for test in o.red]
    for test in (test for o in outcomes for test in o.unsteady):
        print(f"unsteady: {test} failed among others and passed alone")
    if remember:
        red += [f"{test} is unsteady, and was so in one of the last {REMEMBERED_RUNS} runs" for test in unsteady_again(outcomes)]
    for test in red:
        print(f"FAILED {test}")
    print(f"{sum(o.tests - o.skipped - len(o.failed) + len(o.unsteady) for o in outcomes)} passed, {len(red)} failed", flush=True)
    return int(bool(red))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all tests passed, or all but a few that passed alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of the gate: {', '.join(GATE)}; deep: {', '.join(DEEP)}; else all")
    parser.add_argument("--deep", action="store_true", help="all tests, those marked `long` too")
    parser.add_argument("--jobs", type=int, metavar="N", help=f"parts that run at once (the gate: {JOBS}, deep: 1)")
    parser.add_argument("--order", type=int, metavar="SEED", help="run files, and the tests of each, in a random order")
    asked = parser.parse_args(arguments)
    parts = DEEP if asked.deep else GATE
    if unknown := set(asked.parts) - set(parts):
        parser.error(f"expected {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    (BUILD / "output").mkdir(parents=True, exist_ok=True)
    run = Run(parts, asked.deep, asked.jobs or (1 if asked.deep else JOBS), asked.order)
    names = asked.parts or list(parts)
    before = {name: passed for name in names if (passed := run.passed_before(name))}
    now = {o.part: o for o in run.outcomes(name for name in names if name not in before)}
    return report([before.get(name) or now[name] for name in names], remember=not asked.deep)


if __name__ == "__main__":
    sys.exit(main())
