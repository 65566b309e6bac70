"""Each background thread of a node manager goes on after an unexpected exception; see tests/protocol/test_supervised.py."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Full, Queue
from types import SimpleNamespace
from typing import Any

import pytest

from node_manager import proc
from node_manager.admin import logs
from node_manager.control.monitor import Monitor
from node_manager.deployments.move_steps import DIRECT
from node_manager.drivers import logfile
from node_manager.drivers.base import Exit, Spec
from node_manager.drivers.process import ProcessDriver
from node_manager.instances.instances import Instances
from node_manager.manager import Manager
from node_manager.reconcile.reconcile import Reconciler
from node_manager.replicas.copies import Follower
from node_manager.servers.embedded import Servers
from node_manager.slots.slot import Slot
from node_manager.slots.worker import SlotWorker
from node_manager.trials.keyed_canaries import KeyedCanary, SlotCanary
from node_manager.trials.mirrors import MirrorFindings
from node_manager.trials.together import together
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, add, put_image
from tests.support.keyed_node import COUNT, KEYED
from udo_protocol import supervised
from udo_protocol.diff_report import DiffReport
from udo_protocol.registry.wanted import NodeReport, WantedDeployment
from udo_protocol.state import moving

pytestmark = pytest.mark.long


class Unexpected(Exception):
    """An exception that no code catches by name."""


class Once:
    """Replaces a method: raises at the first call, then calls the original."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original, self.raised = getattr(owner, name), False

        def method(*args: Any, **options: Any) -> Any:
            if not self.raised:
                self.raised = True
                raise Unexpected(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, method)


@pytest.fixture
def counted() -> Callable[[str], int]:
    """counted(kind) returns the number of errors since the test began."""
    before = supervised.errors()
    return lambda kind: supervised.errors().get(kind, 0) - before.get(kind, 0)


Counted = Callable[[str], int]


def test_the_one_who_looks_after_a_server_goes_on_when_it_raises(
    manager: Manager, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = manager.servers.run_id("queue")
    once = Once(monkeypatch, Servers, "_until_lost")
    queue = next(s for s in manager.servers.running() if s.role == "queue")

    os.kill(queue.process.pid, signal.SIGKILL)
    # The thread that is asked first for another server launches it, comes back to its loop, and raises there.
    wait_until(lambda: once.raised and counted("server") == 1, 20, "the error")
    queue = next(s for s in manager.servers.running() if s.role == "queue")
    os.kill(queue.process.pid, signal.SIGKILL)

    wait_until(lambda: manager.servers.run_id("queue") not in (before, queue.run_id), 20, "another queue server")


def test_a_slot_goes_on_when_a_step_and_what_follows_it_raise(
    manager: Manager, home: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    [slot] = manager.deployments.slots()
    stepped = threading.Event()
    slot.post(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    Once(monkeypatch, Slot, "next_timer")
    slot.post(lambda: None)
    slot.post(stepped.set)

    assert stepped.wait(bound(20))
    assert counted("slot") == 2
    assert SlotWorker.kind == "worker" and slot.wait_serving(10) is not None


def test_work_beside_a_slot_that_raises_is_counted(manager: Manager, home: Path, counted: Counted) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    [slot] = manager.deployments.slots()
    slot.beside(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    wait_until(lambda: counted("beside") == 1, 10, "the count")


def test_the_pool_is_filled_after_it_raised(manager: Manager, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until(lambda: bool(manager.pool._warm), 20, "a warm instance")
    Once(monkeypatch, Instances, "start")
    taken = manager.pool.take()
    wait_until(lambda: counted("warm-pool") == 1, 20, "the error")
    wait_until(lambda: bool(manager.pool._warm), 20, "another warm instance")
    manager.instances.stop(taken, 1)


def test_slots_are_looked_at_after_looking_at_them_raised(
    manager: Manager, home: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    Once(monkeypatch, Monitor, "_look_at")
    wait_until(lambda: counted("monitor") == 1, 20, "the error")
    wait_until(lambda: bool(manager.monitor.looks("d", 0)), 20, "a look")
    there = len(manager.monitor.looks("d", 0))
    manager.monitor.listeners.append(lambda _: 1 / 0)
    wait_until(lambda: counted("monitor") > 2 and len(manager.monitor.looks("d", 0)) > there, 20, "looks in spite of an error after each")


class FailingRegistry:
    """A registry that wants one deployment; each of its calls fails once with an unexpected error."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.answered: set[str] = set()
        self.generation = 0

    def _asked(self, name: str) -> None:
        if name not in self.failed:
            self.failed.add(name)
            raise Unexpected(name)
        self.answered.add(name)

    def wanted(self, node: str, after: int, wait_s: float, incarnation: str) -> dict[str, Any]:
        self._asked("wanted")
        self.generation += 1
        wish = {"name": "d", "operator": "nobody", "version": "1", "digest": "sha256:0", "config": {}, "update": None}
        return {"generation": self.generation, "deployments": [wish]}

    def report(self, node: str, report: NodeReport, incarnation: str) -> None:
        self._asked("report")

    def heartbeat(self, node: str, **properties: Any) -> None:
        self._asked("heartbeat")

    def leave(self, node: str, incarnation: str) -> None:
        self.answered.add("leave")


def test_each_loop_of_the_reconciler_goes_on_when_it_raises(manager: Manager, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    from node_manager import registry_calls
    from node_manager.reconcile import reconcile

    for module in (reconcile, registry_calls):
        monkeypatch.setattr(module, "RETRY_MOST_S", 0.01)
    monkeypatch.setattr(reconcile, "_AGAIN_S", 0.01)
    monkeypatch.setattr(reconcile, "BEAT_S", 0.01)
    once = [
        Once(monkeypatch, Reconciler, name)
        for name in ("_read_wanted", "_beat", "_observe", "_follow_conditions", "_try_again", "_follow_placements", "_until_done")
    ]
    registry = FailingRegistry()
    reconciler = Reconciler(manager, registry)  # type: ignore[arg-type]
    reconciler.start()
    try:
        wait_until(lambda: registry.answered >= {"wanted", "heartbeat", "report"}, 30, "each call to be made again")
    finally:
        reconciler.stop()
    assert all(o.raised for o in once)
    assert [counted(kind) for kind in ("wanted", "registry-heartbeat", "canaries", "conditions", "retries", "placements")] == [1] * 6
    assert counted("reconcile") >= 4  # errors of the calls, and of the work on the deployment


class Compared:
    """Comparisons that never end."""

    def run(self, *args: Any) -> Iterator[Any]:
        stop = args[4]
        while not stop.wait(0.01):
            yield SimpleNamespace(report=DiffReport(events=5))


def test_a_keyed_canary_goes_on_when_it_raises(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Once(monkeypatch, SlotCanary, "_until_over")
    image = SimpleNamespace(manifest=SimpleNamespace(version="2"), digest="sha256:2")
    wanted: Any = SimpleNamespace(image=image, ready_timeout_s=20, reference="t@2", config=SimpleNamespace(key_groups=4))
    slot: Any = SimpleNamespace(deployment="d", number=0, node=SimpleNamespace(settings=SimpleNamespace(stop_grace_s=1)))
    canary = KeyedCanary(Compared(), wanted, "u", 10)  # type: ignore[arg-type]
    canary.start([slot])
    try:
        assert once.raised and canary.running and canary.measured().events == 5
    finally:
        canary.end()
    assert counted("canary") == 1


def test_a_replica_follows_its_slot_on_when_following_it_raises(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Once(monkeypatch, Follower, "_owner")
    copies: Any = SimpleNamespace()
    across: Any = SimpleNamespace(node="b", find=lambda name: None)  # not placed any more, so that the follower ends
    follower = Follower(copies, across, ("d", 1, 0), "disk")
    wait_until(lambda: follower.over, 30, "it to look again")
    assert once.raised and counted("replica") == 1


def test_a_move_of_key_groups_goes_on_when_a_step_raises(manager: Manager, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = put_image(manager.settings.home, COUNT, **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", digest), 30)
    manager.scaling.scale("d", 2, 30)
    other = manager.deployments.find("d").own[1].number
    once = Once(monkeypatch, moving, "deliver")
    *_, last = manager.moves.move("d", [5, 6], other, DIRECT, 60)
    assert once.raised and last.done and counted("move") == 1
    assert set(manager.moves.map(manager.deployments.find("d")).of(other)) >= {5, 6}


def test_what_stands_prepared_is_kept_fresh_after_a_round_raised(
    manager: Manager, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put_image(manager.settings.home, COUNT, **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", digest), 30)
    once = Once(monkeypatch, moving, "prepare_source")
    manager.scale_outs.prepare("d", 2, refresh_s=0.1, wait_s=30, by_hand=True)
    assert once.raised and counted("scale-out") == 1
    manager.scale_outs.stand_down("d")
    assert manager.deployments.find("d").preparation is None and not manager.deployments.find("d").prepared


def test_what_one_slots_comparison_raises_ends_the_diff_with_it() -> None:
    stop = threading.Event()

    def goes_on() -> Iterator[MirrorFindings]:
        while not stop.wait(0.01):
            yield MirrorFindings(DiffReport(events=5), [])

    def raises() -> Iterator[MirrorFindings]:
        yield MirrorFindings(DiffReport(events=1), [])
        raise Unexpected("a comparison")

    with pytest.raises(Unexpected):
        list(together([goes_on(), raises()], stop))
    assert stop.is_set()


def test_a_slots_log_is_followed_on_when_following_it_raises(tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    once, stop = Once(monkeypatch, logfile, "follow"), threading.Event()
    owner = SimpleNamespace(name="i1", exited=threading.Event(), directory=tmp_path, assigned=SimpleNamespace(version="1"))
    slot = SimpleNamespace(deployment="d", number=0, view=lambda: SimpleNamespace(owner=owner))
    deployment: Any = SimpleNamespace(name="d", own=[slot], slots=[])
    manager: Any = SimpleNamespace(settings=SimpleNamespace(logs=tmp_path), deployments={"d": deployment})
    (tmp_path / "log").write_text("shown\n", "utf-8")
    lines = logs.read(manager, deployment, tail_lines=0, follow=True, stop=stop)
    try:
        assert next(lines).text == "shown"
        with (tmp_path / "log").open("a") as log:
            log.write("and then\n")
        assert next(lines).text == "and then"
    finally:
        stop.set()
    assert once.raised and counted("logs") == 1


def test_a_log_is_followed_no_faster_than_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, sizes, stop = threading.Event(), list[int](), threading.Event()

    class Watched(Queue[logs.Line]):
        def put(self, *args: Any, **options: Any) -> None:
            try:
                super().put(*args, **options)
            except Full:
                sizes.append(self.qsize())
                full.set()
                raise

    monkeypatch.setattr(logs, "Queue", Watched)
    monkeypatch.setattr(logs, "_WAITING", 10)
    owner = SimpleNamespace(name="i1", exited=threading.Event(), directory=tmp_path, assigned=SimpleNamespace(version="1"))
    slot = SimpleNamespace(deployment="d", number=0, view=lambda: SimpleNamespace(owner=owner))
    deployment: Any = SimpleNamespace(name="d", own=[slot], slots=[])
    manager: Any = SimpleNamespace(settings=SimpleNamespace(logs=tmp_path), deployments={"d": deployment})
    (tmp_path / "log").write_text("".join(f"{n}\n" for n in range(100)), "utf-8")
    lines = logs.read(manager, deployment, tail_lines=0, follow=True, stop=stop)
    try:
        assert next(lines).text == "0"
        assert full.wait(bound(20)) and sizes[0] == 10
        assert [next(lines).text for _ in range(99)] == [str(n) for n in range(1, 100)]
    finally:
        stop.set()


def test_an_instance_whose_watching_raises_is_still_reported_when_it_ends(
    tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Exit] = []
    once = Once(monkeypatch, proc, "usage")
    handle = ProcessDriver().start(Spec("x", ("sleep", "600"), {"PATH": os.defpath}, tmp_path), ended.append)
    try:
        wait_until(lambda: once.raised and counted("watch") == 1, 20, "the error")
    finally:
        os.kill(handle.data["pid"], signal.SIGKILL)
    wait_until(lambda: bool(ended), 20, "the report")
    assert [e.code for e in ended] == [-9]


@pytest.mark.short
def test_errors_of_background_threads_are_seen_in_status_and_metrics(daemon: Daemon) -> None:
    import urllib.request

    with contextlib.closing(urllib.request.urlopen(daemon.api.status().metrics_address)) as page:
        assert "# TYPE udo_background_errors_total counter" in page.read().decode()
    assert dict(daemon.api.status().background_errors) == {}
