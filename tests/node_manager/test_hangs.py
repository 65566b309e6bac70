"""Servers that hang (SIGSTOP), lose their socket, or hang when the next manager meets them; operators are not blamed meanwhile.

The grace of the node manager is a fifteenth of the usual one: a server is replaced after 4 s.
For the usual times, which take long: python -m benchmarks exactly_once --stops.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from node_manager.servers import watchdog
from node_manager.servers.embedded import ROLES, Servers
from node_manager.settings import NodeSettings
from node_manager.slots.watching import LOOK_MOST_S, SlotWatch
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from udo_cli.commands import status
from udo_protocol import clock
from udo_protocol.errors import ServerLost, Unavailable
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import SlotStats

pytestmark = pytest.mark.long

Open = Callable[..., Lane]
SHORT = ("--heartbeat-grace-ms", "8000")
HANG_S = 4.0


@pytest.fixture
def hasty(home_daemon: Daemon) -> Daemon:
    """A node manager with a short grace, with one deployment."""
    home_daemon.start(*SHORT)
    home_daemon.deploy(add(1))
    return home_daemon


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop these processes; continue those that are left at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def passes(seconds: float) -> None:
    """Let this time pass while the processes hang."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, seconds + 10, f"{seconds:g} s")


@pytest.fixture
def lane_of() -> Iterator[Open]:
    """lane_of(daemon) opens a lane; closed at the end."""
    opened: list[Lane] = []

    def open_lane(daemon: Daemon) -> Lane:
        opened.append(Lane(daemon.api, "d", f"lane{len(opened)}"))
        return opened[-1]

    yield open_lane
    for each in opened:
        each.conn.close()


def server(daemon: Daemon, role: str) -> tuple[int, str, str]:
    """Return (pid, run id, trouble) from the status."""
    return next((s.pid, s.run_id, s.trouble) for s in daemon.api.status().servers if s.role == role)


def test_servers_that_hang_are_seen_in_the_status_and_waited_for(hasty: Daemon, lane_of: Open) -> None:
    address = str(hasty.home / "node.sock")
    status._node(address)  # the first call's imports take longer than the hang
    caller, before = lane_of(hasty), {role: server(hasty, role) for role in ROLES}
    with stopped(*(pid for pid, *_ in before.values())):
        wait_until(lambda: all("has not answered for" in server(hasty, role)[2] for role in ROLES), 20, "the servers' trouble")
        found = status._node(address)
    assert f"queue server (pid {before['queue'][0]}) has not answered for" in "\n".join(status._silent(found))
    assert caller.ask(1) == 2
    assert lane_of(hasty).ask(1) == 2
    wait_until(lambda: all(server(hasty, role) == before[role] for role in ROLES), 20, "the end of the trouble")
    assert dict(hasty.api.status().background_errors) == {}


@pytest.mark.parametrize("role", [pytest.param(role, marks=pytest.mark.short) if role == "queue" else role for role in ROLES])
def test_a_server_that_hangs_for_too_long_is_replaced(hasty: Daemon, lane_of: Open, role: str) -> None:
    pid, run_id, _ = server(hasty, role)
    with stopped(pid):
        wait_until(lambda: server(hasty, role)[1] != run_id, 60, "another server")
        assert not psutil.pid_exists(pid)
    wait_until(lambda: hasty.slot().state == "owner", 30, "the owner")
    assert lane_of(hasty).ask(1) == 2


def test_servers_without_their_sockets_are_ended_and_replaced(hasty: Daemon, lane_of: Open) -> None:
    before = [server(hasty, role) for role in ROLES]
    for role in ROLES:
        (hasty.home / "run" / f"{role}.sock").unlink()
    wait_until(lambda: not {run for _, run, _ in before} & {server(hasty, role)[1] for role in ROLES}, 30, "other servers")
    assert [pid for pid, *_ in before if psutil.pid_exists(pid)] == []
    wait_until(lambda: hasty.slot().state == "owner", 30, "the owner")
    assert lane_of(hasty).ask(1) == 2


def test_a_manager_that_stood_still_finds_all_as_it_was(hasty: Daemon, lane_of: Open) -> None:
    """The servers hang with it: neither it nor they have used the time that passed on the clock."""
    assert hasty.process is not None
    before = [server(hasty, role) for role in ROLES]
    caller = lane_of(hasty)
    with stopped(hasty.process.pid, *(pid for pid, *_ in before)):
        passes(HANG_S + 1)
    assert caller.ask(1) == 2
    assert [server(hasty, role)[:2] for role in ROLES] == [b[:2] for b in before]


def test_a_manager_that_meets_a_hanging_server_waits_for_it(hasty: Daemon, lane_of: Open) -> None:
    caller, (pid, run_id, _) = lane_of(hasty), server(hasty, "state")
    with stopped(pid):
        hasty.kill()
        hasty.start(*SHORT, wait=False)
        wait_until(lambda: "event='server adopted' role='queue'" in hasty.log(), 20, "the new manager to come to it")
        passes(0.5)
    wait_until(hasty.api.healthy, 30, "the new manager")
    assert server(hasty, "state")[:2] == (pid, run_id)
    assert caller.ask(1) == 2


def test_a_manager_that_meets_a_server_it_cannot_reach_ends_it_before_it_starts_another(home: Path) -> None:
    settings = NodeSettings(home, "n", heartbeat_grace_ms=2000)
    settings.prepare()
    first, second = Servers(settings, lambda role: None), Servers(settings, lambda role: None)
    try:
        first.start()
        state = next(s for s in first.running() if s.role == "state").process.pid
        with stopped(state):
            first._stopping.set()  # as if it had been killed: it no longer supervises anything
            assert second.start() == {"state"}
            assert not psutil.pid_exists(state) or psutil.Process(state).status() == psutil.STATUS_ZOMBIE
    finally:
        first._stopping.set()
        second.stop()


def test_no_two_servers_run_on_one_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from node_manager.servers import embedded

    monkeypatch.setattr(embedded, "_FREE_S", 0.1)
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        servers.start()
        with pytest.raises(Unavailable, match="another process still runs a server on .*/servers/state"):
            servers._launch("state")
    finally:
        servers.stop()


def test_the_watchdog_ends_a_server_that_hangs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.02)
    monkeypatch.setattr(watchdog, "REPLY_S", 0.2)
    monkeypatch.setattr(watchdog, "TERM_S", 0.2)
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    servers.start()
    pids = [s.process.pid for s in servers.running()]
    servers._stopping.set()
    running = servers._watchdog()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    with stopped(*pids):
        watchdog.main(home, 0.5)
        wait_until(lambda: not any(psutil.pid_exists(p) for p in pids), 10, "the end of both")
    assert list(home.rglob("*.sock")) == []


def test_an_operator_is_not_blamed_for_time_in_which_nobody_could_answer_or_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.FakeClock()
    monkeypatch.setattr(clock, "SystemClock", lambda: now)
    watch, waiting = SlotWatch(SlotKeys("d", 0)), SlotStats(base=1, emitted=7, owner=1, depth_frames=1, retained_bytes=1, lanes=1)

    def after(seconds: float, *, able: bool = True, owner_since: float = 1.0) -> float:
        now.sleep(seconds)
        return watch.stuck_s(waiting, owner_since, able=able)

    assert after(5) == 0.0  # the first look
    assert after(5) == 5.0
    assert after(90) == 5.0 + LOOK_MOST_S  # longer between two looks: a server hung, or the manager stood still
    assert after(5, able=False) == 5.0 + LOOK_MOST_S
    assert after(5) == 10.0 + LOOK_MOST_S
    assert after(5, owner_since=2.0) == 0.0  # another owner


@pytest.mark.parametrize("fills", [False, True])
def test_a_server_that_does_not_answer_in_time_counts_as_lost_and_its_connection_is_not_used_again(tmp_path: Path, fills: bool) -> None:
    """Late replies would be taken for those to the next commands. A server that also does not read is not waited for endlessly."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)
    with contextlib.closing(listener):
        conn = Connection.__new__(Connection)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "_greet", lambda self: "run_id:x")
            conn.__init__(str(tmp_path / "s"), timeout_s=0.2)  # type: ignore[misc]
        with pytest.raises(ServerLost, match="did not answer within 0.2 s"):
            conn.call("SET", "k", b"x" * (16 << 20 if fills else 1))
        with pytest.raises(ServerLost):
            conn.call("PING")
        others = []
        with pytest.raises(ServerLost, match="did not answer within 0.2 s"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "_greet", lambda self: "run_id:x")
            for _ in range(10):  # until the listen queue is full
                others.append(Connection(str(tmp_path / "s"), timeout_s=0.2))
        for other in others:
            other.close()
