"""Starts our own programs as processes forked from one that has imported them: most of a short process's time is its imports.

They are processes like any other, with arguments, environment and files of their own. Programs started by other means (`udo up` starts
both daemons, a node manager starts instances, snippets of the guides run the installed `udo`) import everything themselves.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from node_manager.drivers.runtime_base import bootstrap
from tests.conftest import bound

ROOT = Path(__file__).parents[2]
_SERVER = Path(__file__).with_name("forkserver.py")
_NUMBER = struct.Struct("i")
# The program name for an instance, which is started by its script.
INSTANCE = "udo_runtime.main"
# The modules that the programs import, at their start or later; without those that few of them need, such as Docker's SDK and Spark.
_CLI = "events main platform.foreground platform.local platform.usage recorder replay scaffold text.inspect_text text.state_text"
_PACKING = "bases build image isolated migration replayed tried upload"
_CLIENT = ("httpx", "tenacity", "udo_protocol.pouring", "udo_protocol.registry.body")
_IMPORTED = {
    "node_manager": ("node_manager.__main__", *_CLIENT),
    "registry": ("registry.__main__", "registry.app", "alembic.command", "tests.support.wanted_changes"),
    "udo_cli": (
        *(f"udo_cli.{name}" for name in _CLI.split()),
        *(f"udo_cli.commands.{path.stem}" for path in (ROOT / "udo_cli" / "commands").glob("[a-z]*.py")),
        *(f"udo_cli.packing.{name}" for name in _PACKING.split()),
        *("pyarrow.csv", "pyarrow.parquet", "rich.table"),
        *_CLIENT,
    ),
    INSTANCE: (INSTANCE, "udo_runtime.drivers.keyed_instance"),
}


class Forked:
    """A started process, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        data = os.read(self._pipe, _NUMBER.size)
        assert data, "the fork server has ended"
        return int(_NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for and return the exit status; subprocess.TimeoutExpired if it still runs after `timeout` seconds."""
        if (status := self._within(timeout)) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return status

    def _within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._pipe, select.POLLIN)
            if ended.poll(None if timeout_s is None else timeout_s * 1000):
                self.returncode = os.waitstatus_to_exitcode(self._number())
                os.close(self._pipe)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal; no effect if the process ends at the same time or has ended: its parent is the fork server, which reaps it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


@cache
def _server(program: str) -> socket.socket:
    """The socket of a fork server for this program. A server for instances has the module path that a node manager gives them."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path, options = [word or str(Path.cwd()) for word in sys.path], ["-P"]
    if program == INSTANCE:
        roots = (find_spec(name) for name in ("udo_runtime", "udo_protocol", "pyarrow"))
        path, options = [str(Path(spec.origin).parents[1]) for spec in roots if spec and spec.origin], ["-P", "-S"]
    with its:
        command = [sys.executable, *options, str(_SERVER), str(its.fileno()), *_IMPORTED[program]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        process = subprocess.Popen(command, pass_fds=[its.fileno()], env=environment, cwd=ROOT)

    def end() -> None:
        ours.close()
        process.wait(bound(10))

    atexit.register(end)
    return ours


def start(
    program: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: IO[bytes] | None = None,
    output: Sequence[int],
    session: bool = False,
) -> Forked:
    """Start `python -m PROGRAM`, or an INSTANCE. `output`: descriptors of stdout and stderr; `session`: start a new session for it."""
    request = {
        **({"script": str(bootstrap())} if program == INSTANCE else {"module": program}),
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "directory": str(directory or Path.cwd()),
        "session": session,
    }
    pipe, its = os.pipe()
    with open(os.devnull, "rb") as nothing:
        try:
            socket.send_fds(_server(program), [json.dumps(request).encode()], [(stdin or nothing).fileno(), *output, its])
        finally:
            os.close(its)
    return Forked(pipe)


def run(
    program: str, arguments: Sequence[str], *, stdin: str = "", environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run of `python -m PROGRAM` with captured output: returns when it has ended and no process holds its output open."""
    with tempfile.TemporaryFile() as given, ThreadPoolExecutor(2) as readers:
        given.write(stdin.encode())
        given.seek(0)
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        texts = [readers.submit(_text, fd) for fd in (out, err)]
        try:
            process = start(program, arguments, environment=environment, stdin=given, output=(its_out, its_err))
        finally:
            os.close(its_out)
            os.close(its_err)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, code, *(text.result() for text in texts))


def _text(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8") as file:
        return file.read()
