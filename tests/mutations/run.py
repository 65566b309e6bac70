"""Runs tests on a copy of the source, with or without a mutation in it. The source itself is never touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mutations.mutation import ROOT, Mutation

# What tests need of the project; the rest (environments, results) may be large.
COPIED = (
    *("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "runtimes", "examples"),
    *("benchmarks", "tests", "docs", "docker", "pyproject.toml", "README.md", "Makefile"),
)
# One cited test alone takes at most a minute; a mutation may let it wait until it gives up.
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
    """The copy has the fault for a while."""
    path = top / mutation.file
    whole = path.read_text("utf-8")
    path.write_text(mutation.applied(whole), "utf-8")
    try:
        yield
    finally:
        path.write_text(whole, "utf-8")


def run(top: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """pytest over these tests ("file::name" below tests/) of the copy; nothing but its code is imported, also by what they start."""
    path = os.pathsep.join([str(top), str(top / "runtimes" / "python")])
    # Bytecode is not kept: two versions of a file, written within a second, may have the same length.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={top / '.tests'}"]  # it looks at no other session's folders
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{t}" for t in tests)]
    return subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, timeout=TEST_S, stdin=subprocess.DEVNULL)


def noticed(top: Path, mutation: Mutation) -> str:
    """'' if the test fails with the mutation in place, else what happened instead. A test that is skipped notices nothing."""
    with mutated(top, mutation):
        done = run(top, [mutation.test])
    if done.returncode == pytest.ExitCode.TESTS_FAILED and re.search(r"^\d+ failed", done.stdout, re.MULTILINE):
        return ""
    said = done.stdout[-3000:] + done.stderr[-1000:]
    return f"{mutation.test} did not fail: pytest ended with {done.returncode}\n{said}"
