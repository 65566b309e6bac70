"""Sessions of a keyed deployment on a real node: listed, read, dropped and replaced; the owner never serves removed state."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from udo_runtime.state.codec import unpack
from udo_runtime.state.groups import Group

from node_manager import homes
from node_manager.admin.state import States
from node_manager.config import Release
from node_manager.homes import SessionRequest
from node_manager.manager import Manager
from node_manager.settings import NodeSettings
from node_manager.slots.slot import Slot
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import GROUPS, Attempt
from tests.support.diffs import traces
from tests.support.keyed_node import COUNT, KEYED, exported, imported
from tests.support.split_attempt import Job
from udo_cli import state_file
from udo_protocol.errors import Conflict, LaneExpired, NotFound, SchemaError, ServerLost, StateLost, Unavailable, UsageError, WaitTimeout
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue import slot as log
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state.pieces import StoredGroup


@pytest.fixture
def daemon(home_daemon: Daemon) -> Daemon:
    """A node manager that counts a session as unused once its last lane is closed, with a keyed deployment `d`."""
    home_daemon.start("--session-idle-s", "0")
    home_daemon.deploy(COUNT, **KEYED)
    return home_daemon


Open = Callable[..., Attempt]


@pytest.fixture
def attempt(daemon: Daemon) -> Iterator[Open]:
    """attempt(session, epoch) opens a lane for a new attempt."""
    numbers = iter(range(1, 1000))
    opened: list[Attempt] = []

    def make(session: str, epoch: int, **more: str) -> Attempt:
        opened.append(Attempt.at_node(daemon.api, "d", session, epoch, next(numbers), **more))
        return opened[-1]

    yield make
    for a in opened:
        a.close()


def counts(daemon: Daemon, session: str) -> dict[int, int]:
    """Return key -> count in the durable state."""
    found: dict[int, int] = {}
    parts: dict[int, dict[int, list[bytes]]] = {}
    for part in daemon.api.export_state("d", session):
        if part.HasField("piece"):
            parts.setdefault(part.piece.group, {}).setdefault(part.piece.kind, []).append(part.piece.data)
    for kinds in parts.values():
        group = Group.restore(
            StoredGroup(kinds[pb.StatePiece.META][0], kinds.get(pb.StatePiece.BASE, [None])[0], kinds.get(pb.StatePiece.DELTA, []))
        )
        found |= {k: unpack(v)["n"] for k, v in group.values.items()}
    return found


def test_sessions_are_listed_with_keys_epoch_and_whether_a_query_uses_them(daemon: Daemon, attempt: Open) -> None:
    assert attempt("q1", 0).run([1, 2, 1]) == [1, 1, 2]
    open_one = attempt("q2", 0)
    open_one.send([1])
    open_one.answers()
    reply = daemon.api.sessions("d")
    assert reply.node == "n1"
    assert [(s.session, s.last_ended, s.keys, s.in_use, s.lanes) for s in reply.sessions] == [("q1", 0, 2, False, 0)]
    open_one.end()
    open_one.answers()
    found = {s.session: s for s in daemon.api.sessions().sessions}
    assert (found["q2"].in_use, found["q2"].lanes, found["q2"].keys, found["q2"].run) == (True, 1, 1, 1)
    assert found["q1"].bytes > 0


def test_a_dropped_session_is_gone_also_from_the_owners_memory(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1, 2])
    attempt("other", 0).run([7])
    before = daemon.slot().instance
    reply = daemon.api.drop_state("d", "q1")
    assert reply.keys == 2
    assert [s.session for s in daemon.api.sessions("d").sessions] == ["other"]
    assert daemon.slot().instance != before
    assert attempt("q1", 0).run([1]) == [1]  # begins anew
    assert attempt("other", 1).run([7]) == [2]  # goes on
    assert attempt("other", 2).run([7]) == [3]


def test_dropping_under_a_running_attempt_needs_force_and_then_fails_it(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1])
    under_way = attempt("q1", 1)
    under_way.send([1])
    under_way.answers()
    with pytest.raises(Conflict, match="in use: 1 of its tasks exchange events now.*--force"):
        daemon.api.drop_state("d", "q1")
    daemon.api.drop_state("d", "q1", force=True)
    with pytest.raises(LaneExpired):
        under_way.lane.collect(10_000)
    again = attempt("q1", 1)
    again.send([1])
    assert again.frames()[0].header.failure.code == "state_lost"
    assert daemon.api.sessions("d").sessions == []


def test_what_an_unfinished_attempt_left_in_the_log_does_not_bring_a_dropped_session_back(daemon: Daemon, attempt: Open) -> None:
    unfinished = attempt("q1", 0)
    unfinished.send([1, 1])
    unfinished.answers()
    attempt("q2", 0).run([5])  # its END makes the unfinished attempt durable too
    unfinished.send([1])
    unfinished.answers()
    daemon.api.drop_state("d", "q1", force=True)
    assert attempt("q2", 1).run([5]) == [2]
    assert [s.session for s in daemon.api.sessions("d").sessions] == ["q2"]


def test_an_import_is_served_at_once_and_replaces_only_when_told(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1])
    with pytest.raises(Conflict, match="has a session q1 already.*--replace"):
        imported(daemon, "q1", {1: 10}, 4)
    assert imported(daemon, "q1", {1: 10, 2: 20}, 4, replace=True).groups == len(GROUPS)
    assert counts(daemon, "q1") == {1: 10, 2: 20}
    assert attempt("q1", 5, run="r2").run([1, 2, 3]) == [11, 21, 1]
    assert attempt("q1", 6, run="r2").run([1]) == [12]
    assert counts(daemon, "q1") == {1: 12, 2: 21, 3: 1}


def test_an_import_that_does_not_fit_changes_nothing(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1])
    with pytest.raises(SchemaError, match="keeps state by a int64; the file's state is kept by a string"):
        imported(daemon, "new", {1: 1}, 0, key=[pb.KeyColumn(name="a", type="string")])
    with pytest.raises(SchemaError, match="reads state of version 0; the file's is of version 3"):
        imported(daemon, "new", {1: 1}, 0, state_version=3)
    with pytest.raises(NotFound, match="no deployment"):
        imported(daemon, "new", {1: 1}, 0, deployment="e")
    busy = attempt("q1", 1)
    with pytest.raises(Conflict, match="in use"):
        imported(daemon, "q1", {1: 1}, 0, replace=True)
    busy.send([1])
    assert busy.answers() == [2]
    assert [s.session for s in daemon.api.sessions("d").sessions] == ["q1"]


def test_a_change_survives_the_death_of_the_owner_and_of_the_manager(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1, 1])
    daemon.api.drop_state("d", "q1")
    daemon.kill()
    daemon.start("--session-idle-s", "0")
    assert attempt("q1", 0).run([1]) == [1]


def test_undeploying_with_sessions_asks_for_drop_state(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1])
    with pytest.raises(Conflict, match="holds the state of 1 sessions.*--drop-state"):
        daemon.api.undeploy("d")
    daemon.api.undeploy("d", drop_state=True)
    daemon.deploy(COUNT, **KEYED, version="2")
    assert daemon.api.sessions("d").sessions == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deployment_has_nothing_of_a_former_one_of_its_name_whose_removal_was_interrupted(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    wanted, home = WantedDeployment("d", "t", "1", put_image(manager.settings.home, COUNT, **KEYED)), manager.settings.home
    manager.deploy(wanted, 30)
    keys = manager.deployments.find("d").slot.keys
    States(manager).begin_import("d", "q", 1, 0, replace=False)

    def lost(*_: object) -> None:
        raise ServerLost("the state server is away")

    with monkeypatch.context() as away:
        away.setattr(log, "drop_slot", lost)
        manager.undeploy("d")
        with pytest.raises(ServerLost):
            manager.deploy(wanted, 30)
        if restarted:
            manager.stop()
    if restarted:
        manager = Manager(NodeSettings(home, "n"))
        manager.lock_home()
        manager.start()
    try:
        assert manager.deployments.left() == ([] if restarted else [keys])
        manager.deploy(wanted, 30)
        assert States(manager).sessions("d") == []
        assert "removing" not in json.loads((home / "wanted.json").read_text())
    finally:
        if restarted:
            manager.stop()


def test_a_change_of_state_has_the_time_that_the_operator_may_take_to_load_and_is_not_made_later() -> None:
    asked, waits, plans = list[Any](), list[float](), list[Any]()

    def change_state(work: Any) -> Any:
        asked.append(work)
        return SimpleNamespace(result=result)

    def result(timeout_s: float) -> None:
        waits.append(timeout_s)
        raise TimeoutError

    def plan(*parts: Any) -> list[Any]:
        plans.append(parts)
        return []

    wanted = SimpleNamespace(image=SimpleNamespace(manifest=SimpleNamespace(limits=SimpleNamespace(open_timeout_s=500.0))))
    slot: Any = SimpleNamespace(deployment="d", keys=SlotKeys("d", 0), wanted=wanted, change_state=change_state)
    servers = SimpleNamespace(connect=lambda role: SimpleNamespace(close=lambda: None))
    manager: Any = SimpleNamespace(servers=servers, mirrors=SimpleNamespace(end=lambda name: None))
    with pytest.raises(WaitTimeout):
        States(manager)._change(slot, "q", plan, lambda: None)
    with pytest.raises(WaitTimeout):
        asked[0](None, None, 1)
    assert waits[0] > 500 and len(plans) == 1, "it is planned once, to see whether it may be made"


def test_unknown_sessions_and_stateless_deployments_are_named(daemon: Daemon, attempt: Open) -> None:
    attempt("query-1", 0).run([1])
    with pytest.raises(NotFound, match="no session 'query-2'; there are: query-1"):
        daemon.api.drop_state("d", "query-2")
    daemon.deploy("def f(batch): return {'b': batch.column('a')}", name="s", entry="op:f", version="9")
    with pytest.raises(UsageError, match="keeps no state"):
        list(daemon.api.export_state("s", "query-1"))


@pytest.mark.long
def test_an_update_goes_on_when_the_owner_dies_while_its_standby_loads(daemon: Daemon, attempt: Open) -> None:
    attempt("q1", 0).run([1, 1])
    slow = COUNT + "    def open(self, ctx):\n        import time\n        time.sleep(3)\n"
    digest = put_image(daemon.home, slow, version="2", **KEYED)
    [serving] = [s for s in daemon.api.status().slots if s.deployment == "d"]
    updating = ThreadPoolExecutor(1).submit(lambda: list(daemon.api.update("d", "2", digest, timeout_s=bound(60))))
    wait_until(daemon.loading, 10, "standby to load")
    os.kill(serving.pid, signal.SIGKILL)
    wait_until(lambda: any(s.deployment == "d" and s.pid not in (0, serving.pid) for s in daemon.api.status().slots), 30, "an owner")
    last = updating.result(bound(60))[-1]
    assert (last.phase, last.detail) == ("done", digest)
    assert attempt("q1", 1).run([1]) == [3]


def test_a_standby_that_is_killed_leaves_nothing_behind(manager: Manager) -> None:
    one, two = (put_image(manager.settings.home, COUNT + f"# {v}\n", version=v, **KEYED) for v in "12")
    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    manager.updates.prepare("d", Release("2", two))
    with contextlib.closing(manager.servers.connect("state")) as state:
        assert "readers" in traces(state)
        [standby] = [r for p in manager.settings.handles.glob("*.json") if (r := json.loads(p.read_text()))["state"] == "standby"]
        os.kill(int(standby["handle"]["data"]["pid"]), signal.SIGKILL)
        wait_until(lambda: not traces(state), 20, "the changelog to have no reader")  # its lease would be 30 s


def test_an_update_asked_for_while_the_state_server_is_away_ends_and_says_how(daemon: Daemon) -> None:
    digest = put_image(daemon.home, COUNT + "# 2\n", version="2", **KEYED)
    for _ in range(2):
        [server] = [s for s in daemon.api.status().servers if s.role == "state"]
        os.kill(server.pid, signal.SIGKILL)
        last = list(daemon.api.update("d", "2", digest, timeout_s=bound(60)))[-1]
        assert last.phase in ("done", "failed")
        assert last.phase == "done" or last.detail
        wait_until(lambda pid=server.pid: all(s.pid != pid for s in daemon.api.status().servers), 30, "another state server")  # type: ignore[misc]


def test_an_import_that_begins_while_an_earlier_one_ends_is_not_ended_by_it(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(manager.settings.home, COUNT, **KEYED), slots=2), 60)
    states, first = States(manager), manager.deployments.find("d").slot.keys
    states.begin_import("d", "q", 1, 0, replace=False)
    require, begun = homes.require_import, list[Thread]()

    def another_begins(*asked: Any) -> None:
        require(*asked)
        begun.append(Thread(target=states.begin_import, args=("d", "q", 2, 0), kwargs={"replace": True}))
        begun[0].start()
        begun[0].join(0.5)  # it has to wait for the end

    monkeypatch.setattr(homes, "require_import", another_begins)
    states.end_import("d", "q", 1)
    begun[0].join(bound(30))
    with contextlib.closing(manager.servers.connect("state")) as state:
        assert homes.is_importing(state, first, "q"), "nobody is served until the second import has ended"
        require(state, first, SessionRequest("d", "q"), 2)


def test_an_import_that_is_interrupted_between_two_slots_serves_nobody_until_it_is_repeated(
    manager: Manager, api: NodeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(manager.settings.home, COUNT, **KEYED), slots=2), 60)
    node = str(manager.settings.socket)
    job = Job(node)
    assert [job.epoch(epoch, [[1, 100]]) for epoch in (0, 1)] == [[1, 1], [2, 2]]
    file = tmp_path / "q.state"
    summary = exported(api, file)
    change, changed = States._change, list[int]()

    def breaks(self: States, slot: Slot, *wish: Any) -> None:
        changed.append(slot.number)
        if len(changed) == 2:
            raise Unavailable("the node manager was stopped")
        change(self, slot, *wish)

    def imports(session: str, start_epoch: int | None = None) -> None:
        api.import_state(state_file.parts(file, summary, "d", session, start_epoch, False))

    for session in ("left", "anew", "repeated", "scaled"):
        changed.clear()
        monkeypatch.setattr(States, "_change", breaks)
        with pytest.raises(Unavailable, match="was stopped"):
            imports(session, 0 if session == "anew" else None)
        assert changed == [0, 1000]
        monkeypatch.setattr(States, "_change", change)
    for session in ("left", "anew"):
        left = Job(node, session=session)
        for epoch in (2, 1, 0):
            with pytest.raises(StateLost, match="repeat udo state import, or remove"):
                left.epoch(epoch, [[1, 100]])
            left.restart()
    with pytest.raises(StateLost, match="repeat udo state import"):
        next(api.export_state("d", "anew"))
    api.drop_state("d", "anew", force=True)
    assert Job(node, session="anew").epoch(0, [[1, 100]]) == [1, 1]
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(imports, "repeated", start) for start in (None, None))
    outcomes = [e for f in (first, second) if (e := f.exception()) is not None]
    assert all(isinstance(e, Conflict) for e in outcomes), outcomes
    if len(outcomes) == 2:  # one was ended by the other, which itself came while the slots were being changed
        imports("repeated")
    assert Job(node, session="repeated").epoch(1, [[1, 100]]) == [2, 2], "the last one again"
    assert Job(node, session="repeated").epoch(2, [[1, 100]]) == [3, 3]
    api.scale("d", 1)
    imports("scaled")  # the interrupted import was into several slots, which does not hinder one into a single slot
    assert Job(node, session="scaled").epoch(2, [[1, 100]]) == [3, 3]
