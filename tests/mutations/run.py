"""Runs tests on a copy of the source, with or without a mutation. The source itself is never touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.mutations.mutation import ROOT, Mutation

# The parts of the project that tests need; the rest (environments, results) may be large.
COPIED = (
    *("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "runtimes", "examples"),
    *("benchmarks", "tests", "docs", "docker", "pyproject.toml", "README.md", "Makefile"),
)
# A cited test takes at most a minute; with a mutation it may wait until it times out. For each of the tests of one run.
TEST_S = 400


@contextmanager
def copy() -> Iterator[Path]:
    """A copy of the source, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="udo-mutated-") as name:
        for each in COPIED:
            if (source := ROOT / each).is_dir():
                shutil.copytree(source, Path(name) / each, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                shutil.copy2(source, name)
        yield Path(name)


@contextmanager
def mutated(top: Path, mutation: Mutation) -> Iterator[None]:
    """Put the fault into the copy within the block."""
    path = top / mutation.file
    whole = path.read_text("utf-8")
    _write(path, mutation.applied(whole))
    try:
        yield
    finally:
        _write(path, whole)


_written_s = count(int(time.time()) + 1)


def _write(path: Path, text: str) -> None:
    """Write the file with a time that it never had: bytecode is matched to a file by its length and its time in seconds."""
    path.write_text(text, "utf-8")
    os.utime(path, times=(at := next(_written_s), at))


def run(top: Path, tests: Iterable[str], *, gate: bool = False) -> subprocess.CompletedProcess[str]:
    """Run pytest on these tests ("file::name" below tests/) of the copy; they, and what they start, import only its code.

    `gate`: only on those of them that are in the gate.
    """
    path = os.pathsep.join([str(top), str(top / "runtimes" / "python")])
    environment = {**os.environ, "PYTHONPATH": path, "UDO_DEEP": "" if gate else "1", "UDO_GATE": "1" if gate else ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={top / '.tests'}"]  # pytest looks at no other session's folders
    paths = [f"tests/{t}" for t in tests]
    command, most_s = [sys.executable, "-m", "pytest", *options, *paths], TEST_S * len(paths)
    return subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, timeout=most_s, stdin=subprocess.DEVNULL)


def noticed(top: Path, mutation: Mutation, *, gate: bool = False) -> str:
    """'' if the test fails with the mutation, else what happened instead. A skipped test notices nothing."""
    with mutated(top, mutation):
        done = run(top, [mutation.test], gate=gate)
    if done.returncode == pytest.ExitCode.TESTS_FAILED and re.search(r"^\d+ failed", done.stdout, re.MULTILINE):
        return ""
    if gate and done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        return f"{mutation.test} is in `make deep` only"
    said = done.stdout[-3000:] + done.stderr[-1000:]
    return f"{mutation.test} did not fail: pytest ended with {done.returncode}\n{said}"
