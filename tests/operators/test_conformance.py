"""`udo conformance`: the SDKs keep the protocol, and what does not keep it fails where it should."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.operators import liar

PYTHON = Path(__file__).parents[2] / "runtimes" / "conformance" / "python_operator.py"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def test_the_go_sdk_keeps_the_protocol(shell: Shell, programs: Path) -> None:
    said = shell("conformance", "--json", programs / "conformance").json
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])
    assert len(said["us_per_frame"]) == 5 and all(us > 0 for us in said["us_per_frame"].values())


def test_the_python_process_keeps_the_protocol(shell: Shell) -> None:
    said = shell("conformance", "--json", sys.executable, PYTHON).json
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])


def test_each_lie_fails_its_cases_and_no_others(shell: Shell) -> None:
    said = shell("conformance", "--json", sys.executable, liar.__file__, code=6).json
    failed = {c["case"]: c["why"] for c in said["cases"] if not c["passed"]}
    assert sorted(failed) == sorted(case for cases in liar.LIES.values() for case in cases), failed


def test_a_program_or_a_case_that_is_not_there_is_a_usage_error(shell: Shell) -> None:
    assert "/nonexistent/x cannot be started" in shell("conformance", "/nonexistent/x", code=2).err
    assert "no case has 'nowhere'" in shell("conformance", "--only", "nowhere", sys.executable, code=2).err
