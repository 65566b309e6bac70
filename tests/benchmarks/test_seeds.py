"""Suites with random inputs draw new ones in each manual run, and say how to repeat them; in CI they are fixed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.harness import record
from tests.conftest import bound

DRAWS = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.seeds import seeds
@pytest.mark.parametrize("seed", seeds(2))
def test_seeds(seed):
    print("drew", seed)
@settings(max_examples=5)
@given(st.integers())
def test_integers(n):
    print("drew", n)
"""


@pytest.mark.parametrize(("suite", "option", "argument"), [("fuzz_layers", "seed", "seed"), ("exactly_once", "from", "first")])
def test_a_run_by_hand_draws_its_seed_and_prints_the_option_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, suite: str, option: str, argument: str
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(record, "append", made.append)
    small = {"fuzz_layers": ["--quick"], "exactly_once": ["--seeds", "0", "--spark-seeds", "0", "--two-nodes-seeds", "0"]}[suite]
    monkeypatch.setattr(import_module("benchmarks.verification.fuzz_layers"), "QUICK_LAYERS", 20)

    told = [CliRunner().invoke(main, [suite, *small, "--json"], catch_exceptions=False).stderr for _ in range(2)]
    drawn = [int(re.findall(rf"once more: --{option} (\d+)", text)[0]) for text in told]
    CliRunner().invoke(main, [suite, *small, "--json", f"--{option}", str(drawn[0])], catch_exceptions=False)

    assert drawn[0] != drawn[1]
    assert [m["arguments"][argument] for m in made] == [*drawn, drawn[0]]


@pytest.mark.long
def test_tests_draw_the_same_unless_they_are_told_another_seed(tmp_path: Path) -> None:
    (tmp_path / "test_draws.py").write_text(DRAWS)

    def drawn(*options: str) -> tuple[list[str], str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "tests.support.seeds",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
        ]
        done = subprocess.run([*command, *options, str(tmp_path)], capture_output=True, text=True, timeout=bound(100), check=True)
        return re.findall(r"drew (-?\d+)", done.stdout), done.stdout

    fixed, fresh = drawn(), drawn("--seed", "fresh")
    again = re.findall(r"once more: pytest --seed (\d+)", fresh[1])
    assert fixed[0][:2] == ["0", "1"]
    assert fresh[0] != fixed[0] and fresh[0] == drawn("--seed", again[0])[0]
