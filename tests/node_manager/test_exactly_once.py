"""No event is lost, doubled or reordered by a node: owners are killed, managers are killed, and updates coincide with both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image

Open = Callable[..., Lane]


def test_frames_in_flight_survive_the_death_of_their_owner_in_order(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(0))
    caller = lane()
    answers: list[int] = []
    for start in range(0, 400, 40):
        for n in range(start, start + 40):
            caller.send([n])
        os.kill(daemon.slot().pid, signal.SIGKILL)
        answers += [caller.values(caller.receive(30))[0] for _ in range(40)]
        deaths = start // 40 + 1
        wait_until(lambda n=deaths: (daemon.slot().restarts, daemon.slot().state) == (n, "owner"), 20, "next owner")  # type: ignore[misc]

    assert answers == list(range(400))
    assert daemon.slot().restarts == 10


@pytest.mark.long
def test_an_update_prepared_before_its_predecessor_crashed_is_promoted_all_the_same(daemon: Daemon, lane: Open) -> None:
    # The new version kills the old one while it opens, which no sandbox allows: the old one is replaced with a newer token than the standby
    # has.
    daemon.stop()
    daemon.start("--sandbox", "none")
    daemon.deploy(add(1))
    caller, victim = lane(), daemon.slot().pid
    source = f"""
import os, time
from udo_runtime import Operator
class run(Operator):
    def open(self, ctx):
        try:
            os.kill({victim}, 9)
        except OSError:
            return
        time.sleep(1.5)
    def process_batch(self, batch, ctx):
        return {{"b": [a + 100 for a in batch.column("a").to_pylist()]}}
"""
    digest = put_image(daemon.home, source, version="2")

    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"

    assert caller.ask(1) == 101
    assert (daemon.slot().version, daemon.slot().restarts) == ("2", 1)


def test_a_manager_killed_in_the_middle_of_an_update_leaves_the_old_version_answering_and_no_standby(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller, before = lane(), daemon.slot().instance
    slow = "import time\nfrom udo_runtime import Operator\nclass run(Operator):\n    def open(self, ctx): time.sleep(600)\n"
    steps = daemon.api.update("d", "2", put_image(daemon.home, slow, version="2"))
    assert [next(steps).phase, next(steps).phase] == ["pulling", "starting"]
    wait_until(lambda: daemon.loading() == 1, 10, "standby to load")

    daemon.kill()
    assert caller.ask(1) == 2
    daemon.start()

    assert caller.ask(2) == 3
    assert (daemon.slot().instance, daemon.slot().version) == (before, "1")
    wait_until(lambda: daemon.loading() == 0, 10, "standby to go")
    assert list(daemon.api.update("d", "3", put_image(daemon.home, add(100), version="3")))[-1].phase == "done"
    assert caller.ask(1) == 101


@pytest.mark.long
@pytest.mark.parametrize("deployments", [5])
def test_deployments_do_not_disturb_one_another(daemon: Daemon, lane: Open, deployments: int) -> None:
    for i in range(deployments):
        daemon.deploy(add(i), name=f"d{i}", version=f"v{i}")  # type: ignore[misc]
    lanes = [lane(f"d{i}") for i in range(deployments)]
    os.kill(daemon.slot("d0").pid, signal.SIGKILL)

    assert [each.ask(10, 30) for each in lanes] == [10 + i for i in range(deployments)]


@pytest.mark.long
def test_a_pinned_version_nobody_calls_is_retired_and_comes_back_when_it_is_called(home_daemon: Daemon) -> None:
    home_daemon.start("--pinned-idle-s", "0.5")
    home_daemon.deploy(add(1))
    first = Lane(home_daemon.api, "d@1")
    assert first.ask(1) == 2
    first.end.close()
    first.conn.close()

    wait_until(lambda: not any(s.pinned for s in home_daemon.api.status().slots), 20, "pinned slot to be retired")

    again = Lane(home_daemon.api, "d@1")
    assert again.ask(1) == 2
    again.conn.close()
    assert home_daemon.slot().state == "owner"


@pytest.mark.long
def test_a_pinned_version_that_somebody_waits_for_is_not_idle_while_it_loads(home_daemon: Daemon) -> None:
    home_daemon.start("--pinned-idle-s", "0.5")
    home_daemon.deploy("import time\ntime.sleep(1.6)\n" + add(1))
    pinned = Lane(home_daemon.api, "d@1")
    assert pinned.ask(1) == 2
    pinned.conn.close()
