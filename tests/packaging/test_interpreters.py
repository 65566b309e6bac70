"""The run on other interpreters reports that there is none, and fails where all parts are required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import bound

COMMAND = [sys.executable, str(Path(__file__).with_name("interpreters.py"))]


@pytest.mark.parametrize(("required", "status"), [("", 0), ("all", 1)])
def test_without_any_other_interpreter_the_run_fails_where_all_parts_are_required(required: str, status: int, tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path), "UDO_REQUIRE": required}
    done = subprocess.run(COMMAND, env={**os.environ, **nowhere}, capture_output=True, text=True, timeout=bound(60), check=False)
    assert done.returncode == status, done.stderr
    assert "other interpreters present: none" in done.stdout
    assert ("is required here (UDO_REQUIRE=all)" in done.stderr) == bool(status)
