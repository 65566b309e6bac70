"""The Go SDK's samples and its operator for tests, built once a session with the toolchain's own cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, platform, udo  # noqa: F401 (fixtures)
from tests.conftest import require
from tests.node_manager.conftest import Daemon, daemon, home, home_daemon, lane, put_image  # noqa: F401 (fixtures)

GO = Path(__file__).parents[2] / "runtimes" / "go"
# The first build compiles Arrow.
_BUILD_S = 280


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the programs forward, fraud, count, sessionise, testop and conformance."""
    if (go := shutil.which("go")) is None:
        require("go", "no Go toolchain on PATH")
    target = tmp_path_factory.mktemp("go")
    command = [
        go,
        "build",
        "-trimpath",
        "-ldflags=-s -w",
        "-o",
        f"{target}/",
        "./samples/...",
        "./internal/testop",
        "./internal/conformance",
    ]
    done = subprocess.run(command, cwd=GO, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True, timeout=_BUILD_S)
    assert done.returncode == 0, done.stderr
    yield target


def put_program(d: Daemon, program: Path, *arguments: str, **manifest: object) -> str:
    """An operator that is a command in the node's image cache; its digest."""
    digest = put_image(d.home, "", entry="", runtime="exec", command=[f"bin/{program.name}", *arguments], **manifest)  # type: ignore[arg-type]
    folder = d.home / "images" / digest.replace(":", "-") / "code" / "bin"
    folder.mkdir()
    shutil.copy(program, folder)
    return digest
