"""The Go SDK's samples and its operator for tests, built once per session with the toolchain's own cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, platform, udo  # noqa: F401 (fixtures)
from tests.node_manager.conftest import Daemon, daemon, home, home_daemon, lane, put_image  # noqa: F401 (fixtures)
from tests.operators.sdks import BUILT, RUNTIMES, Sdk, go

GO = RUNTIMES / "go"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built samples, testop and conformance."""
    return go(tmp_path_factory.mktemp("go"), "./samples/...", "./internal/testop", "./internal/conformance")


@pytest.fixture(scope="session", params=sorted(BUILT))
def sdk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sdk:
    """The samples of each SDK."""
    return BUILT[request.param](tmp_path_factory.mktemp(request.param))


def put_program(d: Daemon, program: Path, *arguments: str, **manifest: object) -> str:
    """Put an operator that is a command into the node's image cache, and return its digest."""
    digest = put_image(d.home, "", entry="", runtime="exec", command=[f"bin/{program.name}", *arguments], **manifest)  # type: ignore[arg-type]
    folder = d.home / "images" / digest.replace(":", "-") / "code" / "bin"
    folder.mkdir()
    shutil.copy(program, folder)
    return digest
