"""Fixtures for all tests: real servers, bounded waits, and the rule that a missing part skips a test here and fails it in CI."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from node_manager.servers.binaries import find_server, server_args
from udo_protocol.errors import ServerLost, Unavailable
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection

# A shell starts background jobs with SIGINT ignored, and the processes that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A Docker daemon with the runtime base, and PostgreSQL, each started or built when a test first asks for it; the seeds of random tests; and
# the attribution of leaks to test files.
pytest_plugins = ["tests.support.docker_daemon", "tests.support.postgresql", "tests.support.seeds", "tests.support.leaks"]


def require(name: str, why: str) -> NoReturn:
    """Skip for lack of part `name` on a laptop; fail if UDO_REQUIRE asks for all parts."""
    if os.environ.get("UDO_REQUIRE") == "all":
        pytest.fail(f"{name} is required here (UDO_REQUIRE=all): {why}")
    pytest.skip(f"{name}: {why}")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a Docker daemon, and deselect tests marked `long`, except those also marked `short` (in a long file).

    Nothing is deselected if UDO_DEEP is set (`make deep`), or if a test is named on the command line and UDO_GATE is not set.
    """
    for item in items:
        params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        if "docker_daemon" in getattr(item, "fixturenames", ()) or "docker" in params:
            item.add_marker("docker")
    named = any("::" in argument for argument in config.args) and not os.environ.get("UDO_GATE")
    if not os.environ.get("UDO_DEEP") and not named:
        left_out = {item for item in items if item.get_closest_marker("long") and not item.get_closest_marker("short")}
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]


# pytest-timeout ends a test after 600 s; the longest bound, 60 s, must run out before that.
_MOST_PATIENCE = 8.0
_LONGEST_S = 500.0


def patience() -> float:
    """Return the factor by which bounds grow on a busy machine: the number of tasks for each core, between 1 and _MOST_PATIENCE."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_PATIENCE)


def bound(seconds: float) -> float:
    """Return a time-out for work of up to `seconds` on a quiet machine: it only ends hangs, so it suits the busiest one."""
    return max(seconds, min(seconds * _MOST_PATIENCE, _LONGEST_S))


def wait_until(predicate: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return as soon as `predicate` holds; fail naming `what` after `timeout_s`, or later on a busy machine."""
    begun = time.monotonic()
    while not predicate():
        waited_s = time.monotonic() - begun
        if waited_s > timeout_s and waited_s > timeout_s * patience():
            pytest.fail(f"{what} did not happen within {waited_s:.0f} s (bound {timeout_s:g} s, load {os.getloadavg()[0]:.1f})")
        time.sleep(0.005)


@dataclass
class Servers:
    """A queue server and a state server for the test session."""

    queue_socket: str
    state_socket: str
    opened: list[Connection] = field(default_factory=list)

    def queue(self) -> Connection:
        """Return a fresh connection to the queue server, closed at the end of the test."""
        self.opened.append(Connection(self.queue_socket))
        return self.opened[-1]

    def state(self) -> Connection:
        """Return a fresh connection to the state server, closed at the end of the test."""
        self.opened.append(Connection(self.state_socket))
        return self.opened[-1]

    def close(self) -> None:
        """Close all connections that this test opened."""
        while self.opened:
            self.opened.pop().close()


def _answers(socket: Path) -> bool:
    try:
        Connection(str(socket)).close()
    except ServerLost:
        return False
    return True


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Servers]:
    """Both embedded servers, started once per session."""
    try:
        binary, _ = find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    with tempfile.TemporaryDirectory(prefix="udo-") as name:
        home = Path(name)
        processes = []
        try:
            for role in ("queue", "state"):
                (home / role).mkdir()
                processes.append(subprocess.Popen(server_args(binary, role, home / role, home / f"{role}.sock")))  # type: ignore[arg-type]
            servers = Servers(str(home / "queue.sock"), str(home / "state.sock"))
            for path in (servers.queue_socket, servers.state_socket):
                wait_until(lambda p=path: _answers(Path(p)), 10, f"server on {path}")  # type: ignore[misc]
                conn = Connection(path)
                slot.install(conn)
                conn.close()
            yield servers
        finally:
            for p in processes:
                p.terminate()
                p.wait(bound(10))


@pytest.fixture
def servers(running_servers: Servers) -> Iterator[Servers]:
    """Both servers, empty."""
    for conn in (running_servers.queue(), running_servers.state()):
        conn.call("FLUSHALL")
    yield running_servers
    running_servers.close()
