"""A PostgreSQL of the test session's own: in a temporary directory, on a Unix socket only, gone with the session."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import bound, require, wait_until

# Debian keeps the server's programs off PATH.
_DEBIAN = Path("/usr/lib/postgresql")
_NOBODY = 65534


def _programs() -> Path:
    """The folder of `initdb` and `postgres`."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(_DEBIAN.glob("*/bin/initdb"))
    return folders[-1].parent if folders else require("PostgreSQL", "apt-get install -y --no-install-recommends postgresql")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[str], str]]:
    """postgresql(name) makes another database, whose name begins with `name`, and returns its URL."""
    programs, home = _programs(), Path(tempfile.mkdtemp(prefix="udo-pg-"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        os.chown(home, _NOBODY, _NOBODY)
        user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
    made = [programs / "initdb", "--pgdata", home / "data", "--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]
    subprocess.run([*made, "--no-sync"], cwd=home, check=True, capture_output=True, timeout=bound(60), **user)
    with (home / "log").open("wb") as log:
        command = [programs / "postgres", "-D", home / "data", "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"]
        server = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, **user)

    def ask(statement: str) -> bool:
        command = [programs / "psql", "-h", home, "-U", "postgres", "-q", "-c", statement]
        return subprocess.run(command, cwd=home, capture_output=True, timeout=bound(20), check=False).returncode == 0

    numbers = itertools.count()

    def database(name: str) -> str:
        name = f"{name}_{next(numbers)}"  # a fixture may be set up again if its tests run in another order
        assert ask(f'CREATE DATABASE "{name}"')
        return f"postgresql+psycopg://postgres@/{name}?host={home}"

    try:
        wait_until(lambda: ask("SELECT 1") or server.poll() is not None, 30, "PostgreSQL's start")
        assert server.poll() is None, (home / "log").read_text()
        yield database
    finally:
        server.terminate()  # waits until clients have left
        server.wait(bound(20))
        shutil.rmtree(home, ignore_errors=True)
