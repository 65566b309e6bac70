"""Rollbacks to a version whose state was kept: conditions of its promotion, and deaths around it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node_manager.config import Release
from node_manager.drivers.base import Allowance, Exit
from node_manager.instances.instances import Instance
from node_manager.instances.record import InstanceRecord
from node_manager.manager import Manager
from node_manager.servers import access
from node_manager.slots import state_rollback
from tests.conftest import Servers, bound, wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from tests.support.migrated import MIGRATED
from tests.support.selection import long
from tests.support.split_attempt import Job
from udo_protocol.assignment import StateSource
from udo_protocol.errors import Conflict, UdoError
from udo_protocol.node.api import NodeClient
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state import rewinding, turns

KEYS = SlotKeys("d", 0)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    (tmp_path / "log").write_text("out of memory\n")
    record = InstanceRecord("d", 0, "d", "1", "former", 1, False, Allowance(), StateSource.KEPT)
    return Instance("i1", tmp_path, "warm", record)


def test_a_version_that_dies_before_the_state_is_its_own_does_not_come_back_and_says_why(servers: Servers, instance: Instance) -> None:
    state, queue = servers.state(), servers.queue()
    rewinding.keep(state, queue, KEYS, "former", 0, 60_000)
    instance.died(Exit(code=137))
    with pytest.raises(Conflict, match="d@1 was not promoted: .* ended: .*137(.|\n)*out of memory"):
        state_rollback.await_rewound(state, KEYS, instance)
    rewinding.forget(state, queue, KEYS)
    state_rollback.await_rewound(state, KEYS, instance)  # a death after the state became its own: the next owner loads that state


def test_what_is_kept_stays_for_the_owner_that_comes_back_by_it(servers: Servers, instance: Instance) -> None:
    """Its first checkpoint ends the keeping; an owner of that version that serves its own state needs nothing kept."""
    state, queue = servers.state(), servers.queue()
    rewinding.keep(state, queue, KEYS, "former", time.time() + 60, 60_000)
    assert state_rollback.remaining_s(state, KEYS, instance) is None
    instance.assigned.follow = None
    assert state_rollback.remaining_s(state, KEYS, instance) == 0.0
    instance.assigned.digest = "newer"
    assert 50 < (state_rollback.remaining_s(state, KEYS, instance) or 0) <= 60
    rewinding.forget(state, queue, KEYS)
    assert state_rollback.remaining_s(state, KEYS, instance) is None


@pytest.mark.parametrize("when", [long("prepared"), "promoted"])
def test_the_version_that_goes_dies_and_who_comes_back_has_its_own_state(manager: Manager, api: NodeClient, when: str) -> None:
    """The version that comes back is then loaded once more, with no owner to follow: the stored savepoint makes it start from there."""
    home = manager.settings.home
    one = put_image(home, COUNT, **KEYED)
    two = put_image(home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)

    def run(epoch: int, *keys: int) -> list[int]:
        return Attempt.at_node(api, "d", "q", epoch, epoch + 1).run(keys)

    def pid() -> int:
        [serving] = api.status().slots
        return serving.pid

    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    assert run(0, 5, 6) == [1, 1]
    manager.updates.change("d", Release("2", two), 30)
    assert run(1, 5) == [2]
    if when == "prepared":
        manager.updates.prepare("d", Release("1", one))
    newer = pid()
    os.kill(newer, signal.SIGKILL)
    if when == "prepared":
        wait_until(lambda: pid() not in (0, newer), 20, "another owner")
        manager.updates.promote("d", Release("1", one))
    else:
        wait_until(lambda: pid() != newer, 20, "the death to be seen")
        manager.updates.change("d", Release("1", one), 30)
    assert run(2, 5, 6) == [3, 2]
    assert [s.version for s in api.status().slots] == ["1"]


def test_a_slot_whose_standby_was_lost_before_the_promotion_is_not_left_behind(manager: Manager, api: NodeClient) -> None:
    """Its owner died in between; the next owner is newer than the standby, so the standby leaves."""
    home = manager.settings.home
    one = put_image(home, COUNT, **KEYED)
    two = put_image(home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", one, slots=2), 30)
    job, keys = Job(str(home / "node.sock")), [1, 100]
    assert job.epoch(0, [keys]) == [1, 1]
    manager.updates.change("d", Release("2", two), 30)
    assert job.epoch(1, [keys]) == [2, 2]
    manager.updates.prepare("d", Release("1", one))
    _, last = manager.deployments.find("d").own
    owner = last.view().owner
    assert owner is not None
    os.kill(api.status().slots[1].pid, signal.SIGKILL)
    wait_until(lambda: last.view().owner not in (None, owner) and not last.updating, 30, "another owner, and the standby to be gone")
    with pytest.raises(Conflict, match="no update of d is prepared"):
        manager.updates.promote("d", Release("1", one))
    manager.updates.promote_all("d", Release("1", one), 30)
    assert [s.version for s in api.status().slots] == ["1", "1"]
    assert job.epoch(2, [keys]) == [3, 3]


def test_no_key_groups_begin_to_move_while_a_version_is_about_to_serve(
    manager: Manager, api: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that this step keeps for a rollback would bring them back into the slot that they had left."""
    home = manager.settings.home
    one = put_image(home, COUNT, **KEYED)
    two = put_image(home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", one, slots=2), 30)
    job, keys = Job(str(home / "node.sock")), [1, 100]
    assert job.epoch(0, [keys]) == [1, 1]
    first, second = manager.deployments.find("d").own
    waiting, their_turn = list[SlotKeys](), threading.Event()

    def await_turn(queue: Connection, slot: SlotKeys) -> None:
        waiting.append(slot)
        their_turn.wait(bound(30))

    def move() -> None:
        assert list(api.move_groups("d", range(64, 96), first.number, "direct"))[-1].done

    monkeypatch.setattr(turns, "await_turn", await_turn)
    with ThreadPoolExecutor(1) as beside:
        update = beside.submit(manager.updates.change, "d", Release("2", two), 30)
        try:
            wait_until(lambda: len(waiting) == 2, 20, "both slots to wait for their turn")
            with pytest.raises(Conflict, match="the version of deployment 'd' is being changed"):
                move()
        finally:
            their_turn.set()
        update.result(bound(60))
    move()
    with contextlib.closing(access.connect(home, "state")) as state:
        assert not any(rewinding.kept(state, slot.keys) for slot in (first, second)), "a rollback would undo the move"
    assert job.epoch(1, [keys]) == [2, 2]


@pytest.mark.long
def test_a_slot_whose_window_ends_while_others_come_back_stays_with_the_newer_version_until_all_have_one_again(
    manager: Manager, api: NodeClient
) -> None:
    """Each slot counts correctly with the version that it has, and the newer version takes over the state of the slots that went back."""
    home = manager.settings.home
    one = put_image(home, COUNT, **KEYED)
    two = put_image(home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    api.scale("d", 2)
    job, keys = Job(str(home / "node.sock")), [1, 100]
    assert job.epoch(0, [keys]) == [1, 1]
    manager.updates.change("d", Release("2", two), 30)
    assert job.epoch(1, [keys]) == [2, 2]
    manager.updates.prepare("d", Release("1", one))
    last = manager.deployments.find("d").own[-1].keys
    with contextlib.closing(access.connect(home, "state")) as state, contextlib.closing(access.connect(home, "queue")) as queue:
        rewinding.forget(state, queue, last)
    with pytest.raises(Conflict, match="cannot be rolled back to any more"):
        manager.updates.promote("d", Release("1", one))
    assert [s.version for s in api.status().slots] == ["1", "2"]
    assert job.epoch(2, [keys]) == [3, 3]
    with pytest.raises(UdoError, match="No state from before an update is kept"):
        manager.updates.change("d", Release("1", one), 30)
    assert job.epoch(3, [keys]) == [4, 4]
    manager.updates.change("d", Release("2", two), 30)
    assert [s.version for s in api.status().slots] == ["2", "2"]
    assert job.epoch(4, [keys]) == [5, 5]


@pytest.mark.long
def test_without_the_queue_server_the_input_since_is_gone_and_the_newer_version_goes_on(manager: Manager, api: NodeClient) -> None:
    """The rollback window ends with the queue server, which alone had the log since the update. The error says so; no event is lost."""
    home = manager.settings.home
    one = put_image(home, COUNT, **KEYED)
    two = put_image(home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)

    def run(epoch: int, *keys: int) -> list[int]:
        return Attempt.at_node(api, "d", "q", epoch, epoch + 1).run(keys)

    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    assert run(0, 5, 6) == [1, 1]
    manager.updates.change("d", Release("2", two), 30)
    assert run(1, 5) == [2]
    [lost] = [s for s in api.status().servers if s.role == "queue"]
    os.kill(lost.pid, signal.SIGKILL)
    wait_until(lambda: any(s.role == "queue" and s.pid not in (0, lost.pid) for s in api.status().servers), 30, "another queue server")
    wait_until(lambda: any(s.state == "answering" or s.pid for s in api.status().slots), 30, "another owner")
    with pytest.raises(UdoError, match="the queue server was lost since the update, and the input with it: it is too late to roll back"):
        manager.updates.change("d", Release("1", one), 30)
    assert run(2, 5, 6) == [3, 2]
    assert [s.version for s in api.status().slots] == ["2"]


def _kept_keys(home: Path) -> set[str]:
    """Return the keys on both servers that are kept for a rollback."""
    found: set[str] = set()
    for role, keys in (("state", ("savepoint*",)), ("queue", ("pins",))):
        with contextlib.closing(access.connect(home, role)) as conn:  # type: ignore[arg-type]
            for key in keys:
                found |= {bytes(k).decode() for k in conn.call("KEYS", f"{KEYS}{key}")}
    return found


def test_when_the_rollback_window_has_passed_nothing_is_kept_and_the_former_version_is_refused(home_daemon: Daemon) -> None:
    home_daemon.start("--rollback-window-s", "1.5")
    one = home_daemon.deploy(COUNT, **KEYED)
    two = put_image(home_daemon.home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)
    assert Attempt.at_node(home_daemon.api, "d", "q", 0, 1).run([1, 1]) == [1, 2]
    kept: list[set[str]] = []
    for event in home_daemon.api.update("d", "2", two):
        kept.append(_kept_keys(home_daemon.home))
        last = event
    assert last.phase == "done", last
    assert kept[-1], "nothing was kept at all"
    wait_until(lambda: not _kept_keys(home_daemon.home), 30, "the state from before the update to be given up")
    refused = list(home_daemon.api.update("d", "1", one))[-1]
    assert refused.phase == "failed" and "state" in refused.detail, refused
    assert Attempt.at_node(home_daemon.api, "d", "q", 1, 2).run([1]) == [3]


def test_state_that_is_changed_from_outside_ends_the_rollback_window(home_daemon: Daemon) -> None:
    """A rollback would undo the change."""
    home_daemon.start("--session-idle-s", "0")
    one = home_daemon.deploy(COUNT, **KEYED)
    two = put_image(home_daemon.home, MIGRATED, version="2", state_version=1, migrates_from=[0], **KEYED)
    for session in ("q", "other"):
        assert Attempt.at_node(home_daemon.api, "d", session, 0, 1).run([1, 1]) == [1, 2]
    assert list(home_daemon.api.update("d", "2", two))[-1].phase == "done"
    assert _kept_keys(home_daemon.home), "nothing was kept at all"
    home_daemon.api.drop_state("d", "other")
    assert not _kept_keys(home_daemon.home)
    refused = list(home_daemon.api.update("d", "1", one))[-1]
    assert refused.phase == "failed" and "state" in refused.detail, refused
    assert Attempt.at_node(home_daemon.api, "d", "q", 1, 2).run([1]) == [3]
