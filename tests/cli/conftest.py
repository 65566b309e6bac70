"""The `udo` command as its users run it: real processes, a home of their own, and a count of what is left running."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import bound
from tests.support import forked
from udo_protocol.node.api import NodeClient

# For one command; bound() makes it longer.
TIMEOUT_S = 120
OPERATOR = """
import os
from udo_runtime import operator

@operator
def run(batch):
    {body}
    return {{"b": [a + {plus} for a in batch.column("a").to_pylist()]}}
"""
MANIFEST = """
name = "{name}"
version = "{version}"
entry = "op:run"
requirements = {requirements}
[input]
a = "int64"
[output]
b = "{output}"
[limits]
open_timeout_s = 20
answer_timeout_s = 2
"""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The command's output, parsed as JSON."""
        return json.loads(self.out)


@dataclass
class Shell:
    """Runs `udo` with UDO_HOME set to a folder of the test."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def command(self, *args: str | Path) -> list[str]:
        """The argument list of `udo ARGS`."""
        return [sys.executable, "-m", "udo_cli", *map(str, args)]

    def environment(self, **env: str) -> dict[str, str]:
        """Return this environment without the settings of any other platform."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("UDO_")}
        return {**kept, "UDO_HOME": str(self.home), **self.env, **env}

    def __call__(self, *args: str | Path, code: int | None = 0, stdin: str = "", **env: str) -> Done:
        """Run the command to its end and check the exit code."""
        words = [str(word) for word in args]
        done = forked.run("udo_cli", words, stdin=stdin, environment=self.environment(**env), timeout_s=bound(TIMEOUT_S))
        assert code is None or done.returncode == code, f"udo {args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        assert "Traceback (most recent call last)" not in done.stderr or "--debug" in args or "op.py" in done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def running(self) -> list[str]:
        """Return the processes that were started with a path below the home, or whose working directory is below it."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd", "status"]):
            words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
            if process.pid != os.getpid() and process.info["status"] != "zombie" and any(str(self.home) in w for w in words):
                found.append(f"{process.pid}: {' '.join(words)}")
        return found


@pytest.fixture(scope="module")
def udo() -> Iterator[Shell]:
    """A shell whose home is empty at first and whose platform is stopped at the end."""
    home = Path(tempfile.mkdtemp(prefix="udo-cli-"))
    shell = Shell(home)
    try:
        yield shell
    finally:
        shell("down", code=None)
        shutil.rmtree(home, ignore_errors=True)
    assert not shell.running()


@pytest.fixture(scope="module")
def platform(udo: Shell) -> Shell:
    """The same shell, with registry and node manager running."""
    udo("up")
    return udo


@pytest.fixture
def operator(tmp_path: Path) -> Callable[..., Path]:
    """Write an operator b = a + plus into a folder of its own; `body` runs before it answers."""

    def write(
        name: str = "t",
        version: str = "1",
        plus: int = 1,
        body: str = "pass",
        output: str = "int64",
        requirements: str = "[]",
        source: str = "",
    ) -> Path:
        folder = tmp_path / f"{name}-{version}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "operator.toml").write_text(MANIFEST.format(name=name, version=version, output=output, requirements=requirements))
        (folder / "op.py").write_text(source or OPERATOR.format(body=body, plus=plus))
        (folder / "events.json").write_text('[{"a": 1}, {"a": 2}]')
        return folder

    return write


@pytest.fixture
def visits(platform: Shell, tmp_path: Path) -> Iterator[NodeClient]:
    """The node of a platform with the deployment `visits`."""
    from tests.support.visits import deployed

    yield deployed(platform, tmp_path / "visits")
    platform("undeploy", "visits", "--drop-state", code=None)
