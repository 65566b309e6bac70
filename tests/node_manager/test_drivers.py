"""The contract of a driver, run against every driver, the fake included."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from node_manager import proc
from node_manager.drivers import container, logfile, runtime_base, sandbox
from node_manager.drivers.base import Allowance, Driver, Exit, Handle, Spec
from node_manager.drivers.docker import DockerDriver
from node_manager.drivers.process import ProcessDriver
from node_manager.settings import NodeSettings
from tests.conftest import bound, require, wait_until
from tests.support.docker_daemon import Daemon
from tests.support.fake_driver import FakeDriver
from udo_protocol import supervised
from udo_protocol.errors import OperatorError

_PYTHON = {
    "wait": "import time; time.sleep(300)",
    "exit": "import sys; sys.exit({0})",
    "print": "import sys, time; print({0!r}, end='', flush=True); time.sleep(300)",
    "grow": "import time; kept = bytearray({0} << 20); kept[::4096] = b'x' * len(kept[::4096]); time.sleep(300)",
    "spawn": "import subprocess, time; kept = [subprocess.Popen(['sleep', '300']) for _ in range({0})]; time.sleep(300)",
    "leave": "import subprocess, os; p = subprocess.Popen(['sleep', '300']); os._exit(3)",
    # Opens files again and again, since the limit is set just after the process starts.
    "files": "import time\nfor _ in range(100):\n    kept = [open('/dev/null') for _ in range({0})]\n    time.sleep(0.05)",
    "deaf": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)",
}


@dataclass
class Bench:
    """One driver under test, and the instances that it started."""

    make: Callable[[], Driver]
    argv: Callable[..., tuple[str, ...]]
    directory: Path
    handles: list[Handle] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = self.successor()

    def successor(self) -> Driver:
        """Return the driver of a node manager that has just started."""
        self.drivers.append(self.make())
        return self.drivers[-1]

    def start(self, *program: str, allowance: Allowance | None = None) -> tuple[Handle, queue.Queue[Exit]]:
        exits: queue.Queue[Exit] = queue.Queue()
        directory = self.directory / f"i{len(self.handles)}"
        directory.mkdir()
        env = {"PATH": "/usr/bin:/bin"}
        spec = Spec(f"i{len(self.handles)}", self.argv(*program), env, directory, allowance or Allowance())
        self.handles.append(self.driver.start(spec, exits.put))
        return self.handles[-1], exits


def _python(program: str, argument: str = "") -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", _PYTHON[program].format(argument))


def _docker(request: pytest.FixtureRequest, home: Path) -> Bench:
    """Return a bench with the Docker driver and a home of its own, as every node manager has."""
    daemon: Daemon = request.getfixturevalue("docker")
    settings = NodeSettings(home, "n1", runtime_image=request.getfixturevalue("runtime_image"))
    settings.prepare()
    request.getfixturevalue("monkeypatch").setenv("DOCKER_HOST", daemon.host)
    return Bench(lambda: DockerDriver(settings), _contained, settings.instances)


def _contained(program: str, argument: str = "") -> tuple[str, ...]:
    return ("python3", *_python(program, argument)[1:])


def _sandboxed(tmp_path: Path, kind: type) -> Bench:
    """Return a bench with the process driver and this kind of sandbox, under a prepared home, as every node manager has."""
    settings = NodeSettings(tmp_path / "h", "n1")
    settings.prepare()
    box, remark = sandbox.find(settings.sockets, runtime_base.build(settings.runtime_base))
    if not isinstance(box, kind):
        require(kind.__name__, remark)
    return Bench(lambda: ProcessDriver(box), _python, settings.instances)


@pytest.fixture(params=["process", "sandbox", "landlock", "docker", "fake"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "process":
        b = Bench(ProcessDriver, _python, tmp_path)
    elif request.param == "sandbox":
        b = _sandboxed(tmp_path, sandbox.Bubblewrap)
    elif request.param == "landlock":
        request.getfixturevalue("monkeypatch").setattr(sandbox, "PROGRAM", "no-bwrap")
        b = _sandboxed(tmp_path, sandbox.Landlock)
    elif request.param == "docker":
        b = _docker(request, tmp_path)
    else:
        world = FakeDriver().world
        b = Bench(lambda: FakeDriver(world), lambda *program: ("fake", *program), tmp_path)
    yield b
    for handle in b.handles:
        b.driver.stop(handle, 0)
    for driver in b.drivers:
        driver.close()


def test_a_started_instance_runs_until_it_is_stopped_and_reports_once(bench: Bench) -> None:
    handle, exits = bench.start("wait")
    assert bench.driver.inspect(handle).running

    bench.driver.stop(handle, 5)

    assert not bench.driver.inspect(handle).running
    assert exits.get(timeout=bound(5)).code == -15
    assert exits.empty()


def test_a_crash_is_reported_at_once_with_its_status(bench: Bench) -> None:
    _, exits = bench.start("exit", "7")

    how = exits.get(timeout=bound(5))

    assert (how.code, str(how)) == (7, "exit status 7")


def test_an_instance_deaf_to_a_stop_is_killed_after_the_grace(bench: Bench) -> None:
    handle, exits = bench.start("deaf")
    if bench.driver.name != "fake":
        wait_until(lambda: "deaf" in logfile.tail(Path(handle.directory) / "log", 0), 10, "instance to be deaf")

    bench.driver.stop(handle, 0.1)

    assert exits.get(timeout=bound(5)).code == -9


def test_an_instance_beyond_its_memory_is_killed_and_the_reason_said(bench: Bench) -> None:
    _, exits = bench.start("grow", "80", allowance=Allowance(memory_bytes=48 << 20))

    assert "memory limit of 48 MiB exceeded" in exits.get(timeout=bound(10)).reason


def test_the_allowance_of_a_running_instance_can_change(bench: Bench) -> None:
    handle, exits = bench.start("grow", "80", allowance=Allowance(memory_bytes=1 << 30))
    wait_until(lambda: bench.driver.inspect(handle).rss_bytes >= 80 << 20, 10, "instance to grow")

    bench.driver.limit(handle, Allowance(memory_bytes=48 << 20))

    assert "memory limit" in exits.get(timeout=bound(10)).reason


def test_a_hung_instance_is_killed_with_the_reason_it_is_given(bench: Bench) -> None:
    handle, exits = bench.start("deaf")

    bench.driver.kill(handle, "it hangs")

    assert str(exits.get(timeout=bound(5))) == "it hangs"


def test_what_an_instance_writes_can_be_read_and_followed(bench: Bench) -> None:
    handle, _ = bench.start("print", "one\ntwo\nthree\n")
    log, stop, seen = Path(handle.directory) / "log", Event(), []
    for line in logfile.follow(log, 0, stop, lambda: True):
        seen.append(line)
        if line == "three":
            stop.set()
    assert seen == ["one", "two", "three"]
    assert logfile.tail(log, 2) == ["two", "three"]


def test_inspection_shows_resident_memory(bench: Bench) -> None:
    handle, _ = bench.start("wait")

    wait_until(lambda: bench.driver.inspect(handle).rss_bytes > 0, 5, "resident memory")


@pytest.mark.docker
def test_looking_at_a_container_asks_the_daemon_for_nothing_that_takes_a_second(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _docker(request, tmp_path)
    handle, exits = bench.start("wait")
    wait_until(lambda: bench.driver.inspect(handle).rss_bytes > 0, 10, "resident memory")
    for name in ("get", "_get"):  # every further request fails
        monkeypatch.setattr(bench.driver._client.api, name, None)  # type: ignore[attr-defined]

    assert bench.driver.inspect(handle).rss_bytes > 0

    monkeypatch.undo()
    bench.driver.stop(handle, 0)
    assert exits.get(timeout=bound(20))


@pytest.mark.docker
def test_a_container_whose_sampling_raises_is_sampled_again(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls, original = supervised.errors().get("usage", 0), [], container.used

    def used(stats: dict[str, Any]) -> tuple[int, float]:
        calls.append(stats)
        if len(calls) == 1:
            raise ZeroDivisionError
        return original(stats)

    monkeypatch.setattr(container, "used", used)
    bench = _docker(request, tmp_path)
    handle, _ = bench.start("wait")
    try:
        wait_until(lambda: bench.driver.inspect(handle).rss_bytes > 0, 20, "resident memory")
    finally:
        bench.driver.stop(handle, 0)
    assert supervised.errors()["usage"] == before + 1


def test_a_new_manager_recovers_a_running_instance_from_its_handle(bench: Bench) -> None:
    handle, _ = bench.start("wait")
    copy = Handle(**handle.to_json())
    successor, exits = bench.successor(), queue.Queue[Exit]()

    assert successor.recover(copy, Allowance(), exits.put)
    assert successor.inspect(copy).running
    successor.stop(copy, 5)

    assert exits.get(timeout=bound(5))
    assert not bench.successor().recover(copy, Allowance(), exits.put)


def test_what_a_former_manager_has_left_is_removed_by_the_next_one_except_for_what_it_knows(bench: Bench) -> None:
    known, _ = bench.start("wait")
    left, exits = bench.start("wait")
    successor = bench.successor()

    successor.sweep({known.instance})

    if bench.driver.name != "process":  # without its handle a process cannot be told from others: it has to stop itself
        assert exits.get(timeout=bound(5))
    assert successor.recover(known, Allowance(), queue.Queue[Exit]().put)


@pytest.mark.parametrize("bench", ["sandbox", "docker"], indirect=True)
def test_processes_and_threads_beyond_the_allowance_cannot_be_started(bench: Bench) -> None:
    assert bench.driver.capabilities().process_limit
    handle, exits = bench.start("spawn", "60", allowance=Allowance(pids=30))

    how = exits.get(timeout=bound(10))
    if how.reason:  # no kernel limit holds for root: processes are counted instead
        assert "limit of 30 processes exceeded" in how.reason
    else:
        assert how.code == 1
        assert any("unavailable" in line for line in logfile.tail(Path(handle.directory) / "log", 0))


@pytest.mark.parametrize("bench", ["process", "sandbox", "landlock", "docker"], indirect=True)
def test_files_beyond_the_allowance_cannot_be_opened(bench: Bench) -> None:
    assert bench.driver.capabilities().open_files_limit
    _, exits = bench.start("files", "100", allowance=Allowance(open_files=64))
    assert exits.get(timeout=bound(10)).code == 1


def test_a_program_that_does_not_exist_is_an_error_that_names_it(bench: Bench) -> None:
    bench.argv = lambda *program: program

    try:
        handle, exits = bench.start("/nowhere/python", "x")
    except OperatorError as e:
        said = str(e)
    else:  # a sandbox or a container starts before it looks for the program
        assert exits.get(timeout=bound(5)).code in (1, 127)
        said = "\n".join(logfile.tail(Path(handle.directory) / "log", 0))

    assert "/nowhere/python" in said


def test_capabilities_say_that_a_process_is_not_isolated() -> None:
    c = ProcessDriver().capabilities()

    assert c.memory_limit and not (c.process_limit or c.isolates_reads or c.isolates_network or c.isolates_users)


@pytest.mark.parametrize("bench", ["process", "sandbox", "landlock"], indirect=True)
def test_a_process_cannot_gain_privileges(bench: Bench) -> None:
    handle, _ = bench.start("wait")

    def bound() -> bool:
        return all("NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text() for pid in proc.tree(handle.data["pid"]))

    wait_until(bound, 5, "no new privileges")


def test_a_process_leads_a_session_of_its_own_and_takes_its_children_with_it(tmp_path: Path) -> None:
    driver, exits = ProcessDriver(), queue.Queue[Exit]()
    source = "import subprocess, sys; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
    spec = Spec("i", (sys.executable, "-I", "-c", source), {"PATH": "/usr/bin:/bin"}, tmp_path, Allowance(open_files=64))
    handle = driver.start(spec, exits.put)
    wait_until(lambda: bool(logfile.tail(tmp_path / "log", 1)), 10, "child to start")
    child = int(logfile.tail(tmp_path / "log", 1)[0])

    driver.kill(handle, "over")

    exits.get(timeout=bound(5))
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, 5, "child to end")


def test_a_log_beyond_its_bound_is_moved_aside_and_the_tail_spans_both(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("a") as f:
        f.write("".join(f"{i}\n" for i in range(1000)))
        f.flush()
        logfile.bound(log, 100)
        f.write("after\n")

    assert log.read_text() == "after\n"
    assert logfile.tail(log, 2) == ["999", "after"]


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "killed by signal 9 (SIGKILL)"), (-35, "killed by signal 35"), (-70, "killed by signal 70"), (3, "exit status 3")],
)
def test_how_an_instance_ended_is_told_whatever_ended_it(code: int, how: str) -> None:
    """Real-time signals have no names: 34 to 64, and more on some machines."""
    assert str(Exit(code)) == how


def test_a_sandbox_is_heard_on_a_descriptor_of_any_number(tmp_path: Path) -> None:
    """As on a node with many instances: `select.select` takes numbers below 1024 only."""
    (limit, most), number = resource.getrlimit(resource.RLIMIT_NOFILE), 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, number + 1), most))
    child = subprocess.Popen(["true"])
    child.wait()
    reading, writing = os.pipe()
    try:
        with open(writing, "wb") as tells, open(fcntl.fcntl(reading, fcntl.F_DUPFD, number), "rb", buffering=0) as told:
            tells.write(json.dumps({"child-pid": child.pid}).encode())
            tells.flush()
            found = ProcessDriver()._identify(child, told, Spec("x", (), {}, tmp_path))
        assert found["pid"] == child.pid
    finally:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_an_instance_that_ends_is_reported_although_its_children_go_on(bench: Bench) -> None:
    _, exits = bench.start("leave")

    assert exits.get(timeout=bound(10)).code == 3
