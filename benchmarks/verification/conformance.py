"""The conformance suite (`udo conformance`) over every language whose toolchain is installed, and over Python in a process of its own.

Every SDK's conformance operator passes all cases, then its frames are timed. InvalidRun if a case fails.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.bringup import say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.suites.languages import RUNTIMES, at_hand, built
from udo_cli.conformance import suite
from udo_cli.conformance.player import starting

PYTHON = (sys.executable, str(RUNTIMES / "conformance" / "python_operator.py"))
_REPLY_S = 30.0


@dataclass(frozen=True)
class Cases:
    """The numbers of cases."""

    passed: int
    failed: int


@dataclass(frozen=True)
class Figures:
    """By language; `us_per_frame` also by kind of frame."""

    languages: dict[str, Cases]
    us_per_frame: dict[str, dict[str, float]]
    cases_s: dict[str, float]


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run all cases; `quick`: time no frames. No platform takes part, and nothing is random."""
    commands, results, times = {"python": list(PYTHON)}, dict[str, list[suite.Result]](), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="udo-bench-conformance-") as work:
        for name, language in at_hand().items():
            say(f"{name}: building")
            built(language, Path(work, name))
            commands[name] = language.starting(Path(work, name))
        for name, command in commands.items():
            say(f"{name}: cases{'' if quick else ' and frames'}")
            results[name] = list(suite.run(starting(command), _REPLY_S))
            times[name] = {} if quick else suite.frames(starting(command), _REPLY_S)
    if failed := [f"{name}: {r.case.part}: {r.case.title}: {r.why}" for name, of in results.items() for r in of if r.why]:
        raise InvalidRun("\n".join([f"{len(failed)} cases failed", *failed]))
    passed = {name: Cases(len(of), 0) for name, of in results.items()}
    return Figures(passed, times, {name: round(sum(r.took_ms for r in of) / 1000, 1) for name, of in results.items()})


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    cases = [[name, str(of.passed), str(of.failed), f"{f.cases_s[name]:.1f}"] for name, of in f.languages.items()]
    timed = {name: us for name, us in f.us_per_frame.items() if us}
    kinds = list(dict.fromkeys(kind for us in timed.values() for kind in us))
    frames = [[kind, *(f"{us[kind]:,.0f}" if kind in us else "" for us in timed.values())] for kind in kinds]
    found = [Section("Conformance cases", ["language", "passed", "failed", "s"], cases)]
    return [*found, Section("A frame, engine to operator's process and back, µs", ["frame", *timed], frames)] if frames else found
