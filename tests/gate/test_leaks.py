"""Leaks that are found late are charged to the right file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAKY = """
import gc, socket, threading
def test_that_leaves_a_socket_in_a_circle():
    circle = [socket.socket()]
    circle.append(circle)
def test_whose_thread_fails():
    failing = threading.Thread(target=lambda: 1 / 0)
    failing.start()
    failing.join()
def test_that_runs_when_both_are_seen():
    gc.collect()
"""
CLEAN = """
import gc
def test_of_another_file():
    gc.collect()
"""


def ran(folder: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """Run pytest with this project's settings on the files in `folder`; return exit status, output and the names of failed tests."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.leaks", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}"]
    done = subprocess.run(
        [*command, "-o", f"cache_dir={folder}/cache", *arguments, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    failed = folder / "cache" / "v" / "cache" / "lastfailed"
    return done.returncode, done.stdout, sorted(json.loads(failed.read_text())) if failed.exists() else []


def test_a_file_is_charged_with_what_it_leaves_and_no_test_beside_it(tmp_path: Path) -> None:
    (tmp_path / "test_a_leaky.py").write_text(LEAKY)
    (tmp_path / "test_b_clean.py").write_text(CLEAN)
    status, out, failed = ran(tmp_path)
    assert (status, failed) == (1, ["test_a_leaky.py"])
    assert "unclosed <socket" in out and "ZeroDivisionError" in out and "4 passed, 1 error" in out


def test_the_last_file_is_charged_too_and_what_a_filter_lets_pass_is_no_leak(tmp_path: Path) -> None:
    (tmp_path / "test_b_leaky.py").write_text(LEAKY)
    assert ran(tmp_path)[0] == 1
    kinds = ("PytestUnraisableExceptionWarning", "PytestUnhandledThreadExceptionWarning")
    assert ran(tmp_path, *(f"-Wignore::pytest.{kind}" for kind in kinds))[0] == 0
