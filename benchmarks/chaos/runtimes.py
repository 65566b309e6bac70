"""Operators under chaos whose versions run in different processes and languages: each change of version may lead from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.chaos.kinds import CHAIN, HISTORY, Fields, Kind
from benchmarks.chaos.lanes import KINDS
from benchmarks.verification.exactly_once import PROCESS, PYTHON

# One version of each equal pair, so that every update crosses over and other changes do so in every combination; the first one included.
_ELSEWHERE = ("1", "3", "6")
_OTHER_FORM = "3"
# By language: the command that starts the SDK's conformance operator, whose file is in `bin` in the operator's folder. The JVM is small
# and compiles little, since it is started again and again, for a few frames.
COMMANDS = {
    "rust": ("bin/conformance",),
    "java": ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "bin/samples.jar", "conformance"),
}


def in_processes(kind: Kind) -> Kind:
    """Return the kind with some of its versions in a process of their own."""
    return replace(kind, elsewhere={version: {"isolation": "process"} for version in _ELSEWHERE})


def in_language(language: str, built_in: Path) -> Kind:
    """Return HISTORY with some of its versions in a language of COMMANDS; `built_in`: the folder of the built conformance operator."""
    command = COMMANDS[language]

    def told(version: str) -> Fields:
        role = "history_wrapped" if version == _OTHER_FORM else "history"
        return {"runtime": "exec", "command": (*command, role), "entry": ""}

    program = next(Path(word).name for word in command if word.startswith("bin/"))
    return replace(HISTORY, elsewhere={version: told(version) for version in _ELSEWHERE}, program=built_in / program)


def kinds(runtime: str, work: Path) -> Sequence[Kind]:
    """Return the kinds of a run's deployments with this runtime; programs are built in `work`."""
    if runtime == PYTHON:
        return KINDS
    if runtime == PROCESS:
        return [in_processes(kind) for kind in KINDS]
    from benchmarks.suites.languages import LANGUAGES, built

    built(LANGUAGES[runtime], work)
    history = in_language(runtime, work / "bin")
    return [history, history, in_processes(CHAIN)]
