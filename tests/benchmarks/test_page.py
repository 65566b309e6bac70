"""`python -m benchmarks all` and `figures`: the runs that the documents show, those that are refused, and those that are repeated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import figures, page, papers, record
from tests.conftest import bound

COMMIT = "0123456789"


def made(*command: str, commit: str = COMMIT, load: float = 0.1, quick: bool = False) -> dict[str, Any]:
    driver = "docker" if "docker" in command else "process"
    return {
        "name": command[0],
        "command": list(command),
        "time": "2026-01-01T00:00:00+00:00",
        "commit": commit,
        "machine": {"load_at_start": load},
        "arguments": {"quick": quick, "driver": driver},
    }


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (made("codec"), None),
        (made("codec", quick=True), "a quick run"),
        (made("codec", commit=f"{COMMIT}+"), f"files differed from commit {COMMIT}"),
        (made("codec", commit="abcdef0123"), "a run of commit abcdef0123"),
        (made("codec", load=0.5), "the load average at its start was 0.5, expected less than 0.5"),
    ],
)
def test_a_run_that_the_documents_may_not_show_is_refused_with_the_reason(run: dict[str, Any], why: str | None, tmp_path: Path) -> None:
    record.append(run, tmp_path)
    assert record.unfit(run, COMMIT) == why
    found = figures.newest("codec", COMMIT, results=tmp_path)
    assert found == (f"{why}; python -m benchmarks all" if why else run)
    assert page.is_there(("codec",), COMMIT, tmp_path) is (why is None)


def test_a_run_that_was_refused_hides_no_earlier_one(tmp_path: Path) -> None:
    for run in (made("codec", load=0.2), made("codec", load=3.0), made("codec", commit="abcdef0123")):
        record.append(run, tmp_path)
    found = figures.newest("codec", COMMIT, results=tmp_path)
    assert isinstance(found, dict)
    assert found["machine"]["load_at_start"] == 0.2


def test_a_run_is_made_again_unless_it_is_there_with_the_same_options(tmp_path: Path) -> None:
    record.append(made("throughput"), tmp_path)
    assert page.is_there(("throughput",), COMMIT, tmp_path)
    assert not page.is_there(("throughput", *page.DOCKER), COMMIT, tmp_path)
    assert not page.is_there(("latency",), COMMIT, tmp_path)


def test_every_place_of_the_documents_has_its_run_and_every_run_its_place() -> None:
    texts = [document.read_text("utf-8") for document in (figures.DOCUMENT, papers.DOCUMENT)]
    places = {name for text in texts for name in re.findall(r"<!-- figures:(\w+) -->", text)}
    assert {f"{run[0]}_docker" if "docker" in run else run[0] for run in page.RUNS} == places


def test_a_busy_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(page, "LOOK_S", 0.0)
    loads = iter((0.9, 0.7, 0.3))
    assert page.quiet(3600, lambda: next(loads))
    assert capsys.readouterr().err == "load average 0.90; waiting until it is below 0.4\n"
    assert not page.quiet(0, lambda: 0.4)
    assert page.quiet(0, lambda: 0.39)


def test_a_run_is_not_made_unfit_by_its_own_start() -> None:
    # one program that has started since: a twelfth of the minute's average is new
    after = next(load for n in range(1000) if page.quiet(0, lambda load=(load := 1 - n / 1000): load)) * 11 / 12 + 1 / 12  # type: ignore[misc]
    assert record.unfit(made("codec", load=round(after, 2)), COMMIT) is None


def test_an_interrupted_run_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run that needs some time to stop what it started
    did: list[str] = []

    class FakeRun:
        def __init__(self, _: object) -> None: ...

        def __enter__(self) -> FakeRun:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait(self) -> int:
            did.append("wait")
            if did == ["wait"]:
                raise KeyboardInterrupt
            return 130

        def terminate(self) -> None:
            did.append("terminate")

    monkeypatch.setattr(page.subprocess, "Popen", FakeRun)
    with pytest.raises(KeyboardInterrupt):
        page._run(("codec",))
    assert did == ["wait", "terminate", "wait"]


def test_a_trial_with_other_options_replaces_no_figures(tmp_path: Path) -> None:
    for run in (made("migration"), made("migration", "--count", "1")):
        record.append(run, tmp_path)
    found = figures.newest("migration", COMMIT, results=tmp_path)
    assert isinstance(found, dict)
    assert found["command"] == ["migration"]


def test_slices_of_a_run_that_takes_days_are_put_together_whatever_their_options(tmp_path: Path) -> None:
    part = {"seeds": 3, "runs": 3, "faults": {}}
    figures_of = {**part, "mismatches": 0, "without_spark": part, "on_spark": {**part, "seeds": 0}, "slowest_s": 1.0}
    record.append({**made("exactly_once", "--from", "7", "--seeds", "3"), **figures_of}, tmp_path)
    found = figures.newest("exactly_once", COMMIT, results=tmp_path)
    assert isinstance(found, dict)
    assert found["without_spark"]["seeds"] == 3


def test_attacks_are_copied_of_this_commit_only_and_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "sandbox.md"
    document.write_text("<!-- figures:attacks -->\nold\n<!-- /figures:attacks -->\n", "utf-8")
    of = {"driver": "process", "blocked": ["fork_bomb"], "not_isolated": [], "succeeded": [], "achieved": {}, "isolation": "engine"}
    stamped = {"capabilities": {"remark": "sandbox: bubblewrap"}, "versions": {"python": "3", "pyspark": "4", "pyarrow": "26"}}
    machine = {"cores": 2, "cpu": "c", "memory_gb": 1.0, "kernel": "6", "load_at_start": 3.0}
    for commit in ("abcdef0123", f"{COMMIT}+"):
        record.append({**made("attacks", commit=commit), **of, **stamped, "machine": machine}, tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path)

    assert "not copied" in figures.copy_attacks(COMMIT, document, tmp_path)
    assert "old" in document.read_text("utf-8")

    record.append({**made("attacks"), **of, **stamped, "machine": machine}, tmp_path)
    assert "1 run" in figures.copy_attacks(COMMIT, document, tmp_path)
    assert f"commit {COMMIT};" in document.read_text("utf-8")


@pytest.mark.long
def test_the_runs_belong_to_a_checkout_without_changes(tmp_path: Path) -> None:
    root, clone = Path(__file__).parents[2], tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(root), str(clone)], check=True, capture_output=True)

    def everything(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks", "all", *options]
        return subprocess.run(command, cwd=clone, env=_environment(clone), capture_output=True, text=True, timeout=bound(300), check=False)

    listed = everything("--dry-run", "--only", "codec")
    assert listed.returncode == 1, listed.stderr
    assert re.search(r"codec\W+0\W+to do", listed.stdout), listed.stdout
    unknown = everything("--only", "codecs")
    assert unknown.returncode == 2
    assert "expected one of demo, micro_batch, throughput" in unknown.stderr
    (clone / "README.md").write_text("changed\n", "utf-8")
    changed = everything("--dry-run")
    assert changed.returncode == 1
    assert re.search(r"expected a checkout without changes.* got [0-9a-f]{10}\+", changed.stderr), changed.stderr


def _environment(clone: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{clone}:{clone / 'runtimes' / 'python'}"}
