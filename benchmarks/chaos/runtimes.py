"""Operators under chaos whose versions run in different processes and languages: each change of version may lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.kinds import CHAIN, HISTORY, Kind
from benchmarks.chaos.lanes import KINDS
from benchmarks.exactly_once import PROCESS, PYTHON, RUST

# Of each pair of equal versions one, so that an update crosses each time, and other changes do so in every combination; also the first one.
_ELSEWHERE = ("1", "3", "6")
_OTHER_FORM = "3"


def in_processes(kind: Kind) -> Kind:
    """Some of its versions in a process of their own."""
    return replace(kind, elsewhere={version: {"isolation": "process"} for version in _ELSEWHERE})


def in_rust(program: Path) -> Kind:
    """The first kind, some of its versions in Rust; `program`: the Rust SDK's conformance operator."""

    def told(version: str) -> Mapping[str, Any]:
        role = "history_wrapped" if version == _OTHER_FORM else "history"
        return {"runtime": "exec", "command": (f"bin/{program.name}", role), "entry": ""}

    return replace(HISTORY, elsewhere={version: told(version) for version in _ELSEWHERE}, program=program)


def kinds(runtime: str, work: Path) -> Sequence[Kind]:
    """The deployments of a run with this runtime; what has to be built is built in `work`."""
    if runtime == PYTHON:
        return KINDS
    if runtime == PROCESS:
        return [in_processes(kind) for kind in KINDS]
    from benchmarks.languages import LANGUAGES, built

    built(LANGUAGES[RUST], work)
    history = in_rust(work / "bin" / "conformance")
    return [history, history, in_processes(CHAIN)]
