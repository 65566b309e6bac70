"""Operators under chaos whose versions run in different processes and languages: each change of version may lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.kinds import CHAIN, HISTORY, Kind
from benchmarks.chaos.lanes import KINDS
from benchmarks.exactly_once import PROCESS, PYTHON

# Of each pair of equal versions one, so that an update crosses each time, and other changes do so in every combination; also the first one.
_ELSEWHERE = ("1", "3", "6")
_OTHER_FORM = "3"
# By language: what starts the SDK's conformance operator, `bin` being in the operator's folder, and the file of it that lies there. A small
# JVM, which compiles little: it is started again and again, for a few frames.
COMMANDS = {
    "rust": ("bin/conformance",),
    "java": ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "bin/samples.jar", "conformance"),
}


def in_processes(kind: Kind) -> Kind:
    """Some of its versions in a process of their own."""
    return replace(kind, elsewhere={version: {"isolation": "process"} for version in _ELSEWHERE})


def in_language(language: str, built_in: Path) -> Kind:
    """The first kind, some of its versions in one of COMMANDS; `built_in`: where the file of the SDK's conformance operator lies."""
    command = COMMANDS[language]

    def told(version: str) -> Mapping[str, Any]:
        role = "history_wrapped" if version == _OTHER_FORM else "history"
        return {"runtime": "exec", "command": (*command, role), "entry": ""}

    program = next(Path(word).name for word in command if word.startswith("bin/"))
    return replace(HISTORY, elsewhere={version: told(version) for version in _ELSEWHERE}, program=built_in / program)


def kinds(runtime: str, work: Path) -> Sequence[Kind]:
    """The deployments of a run with this runtime; what has to be built is built in `work`."""
    if runtime == PYTHON:
        return KINDS
    if runtime == PROCESS:
        return [in_processes(kind) for kind in KINDS]
    from benchmarks.languages import LANGUAGES, built

    built(LANGUAGES[runtime], work)
    history = in_language(runtime, work / "bin")
    return [history, history, in_processes(CHAIN)]
