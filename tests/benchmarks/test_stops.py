"""A benchmark that is interrupted leaves nothing behind: it handles Ctrl-C itself, and ends what it has started."""

from __future__ import annotations

import ast
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import bringup
from benchmarks.verification import fuzz_frames
from udo_interface import java

ROOT = Path(__file__).parents[2] / "benchmarks"


def test_only_one_place_starts_spark_which_takes_the_handler_of_ctrl_c_away() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and any(name.name == "spark_session" for name in node.names)
    }
    assert found == {"harness/bringup.py"}


def test_ctrl_c_still_interrupts_once_spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def spark_session(*_: Any, **__: Any) -> Any:
        signal.signal(signal.SIGINT, lambda *_: None)
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None), stop=lambda: stopped.append(True))

    monkeypatch.setattr(java, "spark_session", spark_session)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), bringup.spark_of({}):
        signal.raise_signal(signal.SIGINT)
    assert stopped == [True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fuzzing_child_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class FakeChild:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def wait(self, *_: Any) -> int:
            if not did:
                raise SystemExit(143)
            did.append("wait")
            return -9

        def kill(self) -> None:
            did.append("kill")

    monkeypatch.setattr(fuzz_frames.subprocess, "Popen", FakeChild)
    with pytest.raises(SystemExit):
        fuzz_frames.portion(1, 0, 10)
    assert did == ["kill", "wait"]
