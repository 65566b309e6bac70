"""Scale to zero: a deployment without callers has no instance, and the next frame from any caller is still answered."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from elasticity.scaling.journal_rows import rows_of
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from udo_cli.commands.events import replayed

pytestmark = pytest.mark.long

IDLE = {"elasticity": {"mode": "auto", "least": 1, "most": 2, "idle_after_s": 2}}


@pytest.fixture
def idle(home_daemon: Daemon) -> Daemon:
    """A deployment without an instance."""
    daemon = home_daemon.start("--decide-s", "1", "--pinned-idle-s", "1")
    daemon.deploy(add(1), config_json=json.dumps(IDLE))
    sleeps(daemon)
    return daemon


def sleeps(daemon: Daemon) -> None:
    wait_until(lambda: daemon.slot().state == "asleep" and not instances(daemon), 60, "the deployment to be without an instance")


def instances(daemon: Daemon) -> list[dict[str, Any]]:
    return [record for record in daemon.records() if record["deployment"] == "d"]


def steps(daemon: Daemon) -> list[tuple[str, int]]:
    rows = rows_of(daemon.api.decisions("d"), False)
    return [(row["kind"], row["slots"]) for row in sorted(rows, key=lambda row: row["at_s"]) if row["result"] == "done"]


@pytest.mark.short
def test_the_first_frame_wakes_it_whether_its_lane_is_new_or_was_open_all_the_time(idle: Daemon) -> None:
    first = Lane(idle.api, "d", "first")
    assert first.ask(1) == 2
    wait_until(lambda: [r["state"] for r in instances(idle)] == ["owner"], 20, "the instance to be written down as the owner")
    sleeps(idle)
    other = Lane(idle.api, "d", "other")
    first.send([5])
    other.send([7])
    assert first.values(first.receive(60)) == [6] and other.values(other.receive(60)) == [8], "both are answered, in their own order"
    sleeps(idle)
    wait_until(lambda: len(steps(idle)) >= 5, 20, "all to be written down")
    assert steps(idle) == [("scale_in", 0), ("wake", 1)] * 2 + [("scale_in", 0)]
    woken = [row for row in rows_of(idle.api.decisions("d"), False) if row["kind"] == "wake"]
    assert all(0 < row["first_answer_ms"] < 60_000 and "answered after" in row["detail"] for row in woken)
    assert replayed(idle.api.decisions("d"))["same"]
    first.conn.close()
    other.conn.close()


def test_whoever_dies_meanwhile_it_wakes_and_nothing_is_lost(idle: Daemon) -> None:
    lane = Lane(idle.api, "d", "before")
    idle.kill()
    lane.send([1])
    idle.start("--decide-s", "1", "--pinned-idle-s", "1")
    assert lane.values(lane.receive(60)) == [2], "a frame that came while no node manager was there to see it"
    lane.conn.close()
    sleeps(idle)
    [queue] = [s for s in idle.api.status().servers if s.role == "queue"]
    os.kill(queue.pid, signal.SIGKILL)
    wait_until(lambda: idle.api.status().servers[0].pid != 0 and idle.slot().state == "owner", 60, "an instance beside the new server")
    sleeps(idle)
    after = Lane(idle.api, "d", "after")
    assert after.ask(3) == 4
    after.conn.close()


def test_it_is_undone_by_asking_for_something_else(idle: Daemon) -> None:
    digest = idle.slot().digest
    idle.api.deploy("d", "t", "1", digest, "{}")
    wait_until(lambda: idle.slot().state == "owner", 30, "an instance")
    seen_s = idle.api.signals().watched_s
    wait_until(lambda: idle.api.signals().watched_s > seen_s + 4, 30, "longer than it would have taken")
    assert idle.slot().state == "owner"
    idle.api.deploy("d", "t", "1", digest, json.dumps(IDLE))
    sleeps(idle)
    idle.api.undeploy("d")
    assert not idle.api.status().slots and not instances(idle)


def test_a_version_can_be_changed_while_it_sleeps(idle: Daemon) -> None:
    from tests.node_manager.conftest import put_image

    digest = put_image(idle.home, add(10), version="2")
    assert list(idle.api.update("d", "2", digest))[-1].phase == "done"
    lane = Lane(idle.api, "d", "lane")
    assert lane.ask(1) == 11
    [pid] = [s.pid for s in idle.api.status().slots]
    os.kill(pid, signal.SIGKILL)
    assert lane.ask(2) == 12, "its owner is replaced at once, as of any deployment"
    lane.conn.close()
