"""Failures that make the gate red, and those that it only reports as `unsteady`."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests import parts

HERE = Path(__file__).parents[1]
# Fails when it first runs in a folder.
ONCE = """
import os, pathlib
def test_that_fails_once():
    seen = pathlib.Path({folder!r}) / "{name}"
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.fixture
def one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are the only part of the gate, and the only deep part."""
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    (folder / "test_that_passes.py").write_text("def test_it(): pass\n")
    only = {"some": parts.Part(("some",))}
    for name, value in {"ROOT": tmp_path, "BUILD": tmp_path / "build", "RUNS": tmp_path / "runs", "GATE": only, "DEEP": only}.items():
        monkeypatch.setattr(parts, name, value)
    return folder


def commit() -> None:
    """Commit the files in tests/ there."""
    (parts.ROOT / ".gitignore").write_text("/*\n!/tests\n__pycache__\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(parts.ROOT)]
    for command in (["init", "-q"], ["add", "tests"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)


def test_what_fails_and_passes_alone_is_unsteady_and_green(one_part: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (one_part / "test_once.py").write_text(ONCE.format(folder=str(one_part), name="seen"))
    assert parts.main([]) == 0
    assert "unsteady: tests/some/test_once.py::test_that_fails_once" in capfd.readouterr().out
    [line] = parts.RUNS.read_text().splitlines()
    remembered = json.loads(line)
    assert remembered["unsteady"] == ["tests/some/test_once.py::test_that_fails_once"]
    assert "assert not first" in remembered["why"]["tests/some/test_once.py::test_that_fails_once"]


def test_what_fails_alone_too_is_red(one_part: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (one_part / "test_never.py").write_text("def test_never(): assert False\n")
    assert parts.main(["some"]) == 1
    assert "FAILED tests/some/test_never.py::test_never" in capfd.readouterr().out


@pytest.mark.long
def test_many_that_fail_at_once_are_no_accident(one_part: Path) -> None:
    for number in range(parts.MOST_UNSTEADY + 1):
        (one_part / f"test_once{number}.py").write_text(ONCE.format(folder=str(one_part), name=f"seen{number}"))
    assert parts.main([]) == 1


@pytest.mark.long
def test_a_part_that_cannot_begin_or_runs_nothing_is_red(one_part: Path) -> None:
    (one_part / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert parts.main([]) == 1
    (one_part / "test_broken.py").unlink()
    (one_part / "test_that_passes.py").unlink()
    assert parts.main([]) == 1


@pytest.mark.long
def test_the_same_test_unsteady_twice_within_the_last_runs_is_red(one_part: Path, capfd: pytest.CaptureFixture[str]) -> None:
    once = one_part / "test_once.py"
    for number, status in enumerate([0, 1]):
        once.write_text(ONCE.format(folder=str(one_part), name=f"seen{number}"))
        assert parts.main([]) == status
    assert "was so in one of the last" in capfd.readouterr().out
    with parts.RUNS.open("a") as runs:
        runs.writelines('{"unsteady": []}\n' for _ in range(parts.REMEMBERED_RUNS - 1))
    once.write_text(ONCE.format(folder=str(one_part), name="seen long after"))
    assert parts.main([]) == 0


@pytest.mark.long
def test_a_deep_part_that_passed_on_this_commit_is_not_run_again(one_part: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commit()
    assert [parts.main(["--deep"]) for _ in range(2)] == [0, 0]
    assert capfd.readouterr().out.count("# some") == 1
    (one_part / "test_new.py").write_text("def test_new(): assert False\n")
    assert parts.main(["--deep"]) == 1
    commit()
    assert [parts.main(["--deep"]) for _ in range(2)] == [1, 1]


@pytest.mark.long
def test_a_deep_part_that_passed_is_kept_when_the_next_one_is_interrupted(one_part: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = one_part.parent / "other"
    other.mkdir()
    (other / "test_interrupted.py").write_text("import os, signal\ndef test_it(): os.kill(os.getppid(), signal.SIGINT); assert False\n")
    parts.DEEP["other"] = parts.Part(("other",))
    commit()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # SIGINT is ignored in a shell's background jobs
    try:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                parts.main(["--deep"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().out.count("# some") == 1


def test_every_folder_with_tests_is_in_the_gate_and_in_the_deep_run() -> None:
    folders = {path.relative_to(HERE).parts[0] for path in HERE.glob("*/**/test_*.py")}
    assert {path.split("/")[0] for part in parts.GATE.values() for path in part.paths} - {"."} == folders
    assert {path.split("/")[0] for part in parts.DEEP.values() for path in part.paths} - {"."} == folders


def test_what_a_deep_part_leaves_out_is_in_another_one() -> None:
    left_out = {path for part in parts.DEEP.values() for path in part.without}
    assert left_out <= {path for part in parts.DEEP.values() for path in part.paths}
