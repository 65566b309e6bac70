"""What the process driver claims is what was found inside, whatever program calls itself a sandbox."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from node_manager.drivers import sandbox
from node_manager.drivers.base import Capabilities
from node_manager.instances import runtime_base

ISOLATION = [f.name for f in fields(Capabilities) if f.name.startswith("isolates_") or f.name in ("disk_limit", "process_limit")]


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that is found under bubblewrap's name; the test writes it."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / sandbox.PROGRAM
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return program


def find(home: Path) -> tuple[sandbox.Sandbox | None, str]:
    (home / "run").mkdir(parents=True)
    return sandbox.find(home / "run", runtime_base.build(home / "runtime"))


def test_a_sandbox_that_holds_nothing_claims_nothing(bwrap: Path, tmp_path: Path) -> None:
    bwrap.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')

    box, remark = find(tmp_path / "h")

    assert isinstance(box, sandbox.Bubblewrap)
    assert remark == "sandbox: bubblewrap"
    held = [name for name in ISOLATION if getattr(box.capabilities, name)]
    assert held == [], "this user may read, write, connect and see everything"


def test_a_sandbox_that_does_not_start_is_not_used_and_the_reason_said(bwrap: Path, tmp_path: Path) -> None:
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")

    box, remark = find(tmp_path / "h")

    assert not isinstance(box, sandbox.Bubblewrap)
    assert "bubblewrap does not work here: bwrap: No permissions to create new namespace" in remark


def test_a_home_that_operators_would_see_allows_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))

    box, remark = find(tmp_path / "h")

    assert box is None
    assert f"{tmp_path / 'h'} lies inside {tmp_path}" in remark
