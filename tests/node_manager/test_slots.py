"""Several slots of a deployment without state on a node: `slots = n` at deploy and `udo scale`, while callers push."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest

from node_manager.deployments.lanes import Lanes
from node_manager.servers import access
from tests.conftest import bound, wait_until
from tests.support import cluster
from tests.support.cluster import Cluster
from udo_protocol.errors import Conflict, UsageError
from udo_protocol.queue import slot as log

# Answers with a number drawn at its start, which identifies the process, and with its version; fails on -1.
WHO = """
import random
from udo_runtime import operator
me = random.getrandbits(40)
@operator
def run(batch):
    values = batch.column("a").to_pylist()
    print(f"process {{me}} has {{values}}", flush=True)
    if -1 in values: raise ValueError("no such value")
    return {{"b": [me * 10 + {version} for _ in values]}}
"""


def who(version: int = 1) -> str:
    return WHO.format(version=version)


@pytest.fixture
def idle_soon(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node removes a slot one second after its last use."""
    with cluster.running(home, tmp_path / "registry", "--pinned-idle-s", "1") as c:
        yield c


def _slots(c: Cluster) -> list[int]:
    return [s.slot for s in c.node.api.status().slots if s.deployment == "d"]


def _scale(c: Cluster, slots: int) -> None:
    c.client.scale("d", slots)
    wait_until(lambda: c.state()[0] == "answering", 30, f"{slots} slots")


def test_new_lanes_go_to_the_slot_with_the_fewest(cluster: Cluster) -> None:
    cluster.deploy(who(), slots=3)
    lanes = [cluster.lane() for _ in range(6)]
    processes = [lane.ask(0) for lane in lanes]
    assert sorted(Counter(processes).values()) == [2, 2, 2]
    gone = [k for k, process in enumerate(processes) if process == processes[0]]
    for k in gone:
        lanes[k].end.close()
    assert [cluster.lane().ask(0) for _ in gone] == [processes[0]] * 2, "where lanes were closed there is room"


class Answering:
    """A slot that answers, as a choice between slots sees it."""

    def __init__(self) -> None:
        self.keys, self.chosen_at = None, 0.0

    def view(self) -> Any:
        return SimpleNamespace(owner="i")


def test_the_queue_server_is_asked_for_lanes_while_others_may_look_at_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, slots, lanes = RLock(), [Answering(), Answering()], iter([[1, 0], [0, 0], [0, 0]])

    def free() -> bool:
        if taken := lock.acquire(blocking=False):
            lock.release()
        return taken

    def open_lanes(*_: object) -> list[int]:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(free).result(bound(10)), "status and lanes of all deployments wait"
        return next(lanes)

    monkeypatch.setattr(log, "open_lanes", open_lanes)
    node: Any = SimpleNamespace(servers=SimpleNamespace(connect=lambda role: SimpleNamespace(close=lambda: None)))
    nothing: Any = None
    deployments: Any = SimpleNamespace(lock=lock)
    opened = Lanes(node, deployments, nothing, nothing, nothing, None)
    deployment: Any = SimpleNamespace(canary=None, own=slots)
    assert [slots.index(opened._own_or_canary(deployment)) for _ in range(3)] == [1, 0, 1]  # type: ignore[arg-type]


def test_scaling_up_and_down_disturbs_no_lane_and_leaves_nothing_behind(idle_soon: Cluster) -> None:
    c = idle_soon
    c.deploy(who())
    first = c.lane()
    served = first.ask(0)
    _scale(c, 3)
    assert len(_slots(c)) == 3
    others = [c.lane(), c.lane()]
    elsewhere = [lane.ask(0) for lane in others]
    assert len({served, *elsewhere}) == 3 and first.ask(0) == served, "a lane stays where it was opened"

    _scale(c, 1)
    assert [c.lane().ask(0) for _ in range(2)] == [served, served], "new lanes go to the slot that stays"
    assert [lane.ask(0) for lane in others] == elsewhere, "and open ones are answered where they are"
    c.push("2", who(2))
    assert list(c.client.update("d", "2"))[-1]["phase"] == "done"
    wait_until(lambda: all(lane.ask(0) % 10 == 2 for lane in others), 30, "an update to reach the lanes of slots that go")

    for lane in others:
        lane.end.close()
    wait_until(lambda: _slots(c) == [0], 30, "the slots that are too many to go")
    left = lambda: {bytes(key).split(b":")[2] for role in ("queue", "state") for key in _keys(c, role)}  # noqa: E731
    wait_until(lambda: left() == {b"0"}, 30, "their keys to go")


def _keys(c: Cluster, role: str) -> list[bytes]:
    conn = access.connect(c.node.home, role)  # type: ignore[arg-type]
    try:
        return list(conn.call("KEYS", "udo:d:*"))
    finally:
        conn.close()


def test_an_update_and_a_rollback_change_all_slots_or_none(cluster: Cluster) -> None:
    cluster.deploy(who(), slots=2)
    lanes = [cluster.lane(), cluster.lane()]
    cluster.push("2", who(2))
    cluster.push("3", "import no_such_module\n")

    assert list(cluster.client.update("d", "3"))[-1]["phase"] == "failed"
    assert [lane.ask(0) % 10 for lane in lanes] == [1, 1]
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    assert [lane.ask(0) % 10 for lane in lanes] == [2, 2]
    assert list(cluster.client.rollback("d"))[-1]["phase"] == "done"
    assert [lane.ask(0) % 10 for lane in lanes] == [1, 1]
    assert len({lane.ask(0) for lane in lanes}) == 2
    wait_until(lambda: len(cluster.node.records()) - _warm(cluster) == 2, 20, "the replaced instances and all standbys to go")


def _warm(c: Cluster) -> int:
    return sum(record["state"] == "warm" for record in c.node.records())


def test_a_slot_whose_instance_dies_holds_up_no_other_and_a_new_node_manager_finds_all_again(cluster: Cluster) -> None:
    cluster.deploy(who(), slots=2)
    lanes = [cluster.lane(), cluster.lane()]
    processes = [lane.ask(0) // 10 for lane in lanes]
    dead = cluster.node.api.status().slots[1]
    os.kill(dead.pid, signal.SIGKILL)
    lanes[1].send([0])
    assert lanes[0].ask(0) // 10 == processes[0]
    lanes[1].receive()  # until its sandbox has ended, the operator's process may still answer

    def noted() -> bool:
        owners = {r["handle"]["instance"] for r in cluster.node.records() if r["state"] == "owner"}
        return dead.instance not in owners and owners == {s.instance for s in cluster.node.api.status().slots}

    wait_until(noted, 20, "the new owner to be noted on disk")
    former, processes[1] = processes[1], lanes[1].ask(0) // 10
    assert processes[1] != former
    before = [(s.slot, s.pid) for s in cluster.node.api.status().slots]
    cluster.node.kill()
    cluster.start_node()
    assert [lane.ask(0) // 10 for lane in lanes] == processes, "the same processes go on"
    assert [(s.slot, s.pid) for s in cluster.node.api.status().slots] == before, "and the new node manager knows them"
    cluster.stop_dead()
    cluster.start_node()
    wait_until(lambda: all(s.pid for s in cluster.node.api.status().slots), 30, "both slots to be started again")
    assert len({cluster.lane().ask(0), cluster.lane().ask(0)}) == 2


@pytest.mark.long
def test_a_diff_the_log_and_dead_letters_are_of_all_slots(idle_soon: Cluster) -> None:
    c = idle_soon
    c.deploy(who(), slots=2, policy="dead-letter")
    lanes = [c.lane(), c.lane()]
    digest = c.client.deployment("d")["digest"]
    events = c.node.api.diff("d", "1", digest, for_s=60, examples=4)
    told = (json.loads(event.report_json) for event in events)
    next(told)
    for _ in range(5):
        for lane in lanes:
            lane.ask(7)
    report = next(r for r in told if r.get("frames", 0) >= 10)
    events.close()  # type: ignore[attr-defined]
    assert report["frames"] == 10 and report["different"] == 10, "another process answers another number"

    processes = {lane.ask(0) // 10 for lane in lanes}
    said = "\n".join(line.text for line in c.node.api.logs("d"))
    assert all(f"process {pid} has" in said for pid in processes)
    following = c.node.api.logs("d", follow=True, tail_lines=1)
    next(following)
    for lane in lanes:
        lane.ask(9)
    heard = ""
    while not all(f"process {pid} has [9]" in heard for pid in processes):
        heard += next(following).text
    following.close()  # type: ignore[attr-defined]

    lanes[1].send([-1])
    lanes[1].receive()
    wait_until(lambda: sum(s.dead_letters for s in c.node.api.status().slots) == 1, 20, "the dead letter")
    _scale(c, 1)
    lanes[1].end.close()
    lanes[0].end.close()
    wait_until(lambda: _slots(c) == [0], 30, "the second slot to go")
    of_first = lambda: [s.dead_letters for s in c.node.api.status().slots if s.deployment == "d"]  # noqa: E731
    wait_until(lambda: of_first() == [1], 20, "its dead letter to be the first slot's")


@pytest.mark.long
def test_what_cannot_be_scaled_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.deploy(who(), slots=2)
    with pytest.raises(UsageError, match="less than or equal to 64"):
        cluster.client.scale("d", 65)
    with pytest.raises(UsageError, match="the slots 0, 1000 on node n1; expected the number of one: each has a log"):
        next(cluster.node.api.record("d", 1))
    cluster.push("9", who(), key=["a"])
    cluster.client.deploy("k", "t", "9")
    cluster.client.deploy("few", "t", "9", limits={"key_groups": 3})
    with pytest.raises(UsageError, match="'few' has 3 key groups: expected at most as many slots, got 4"):
        cluster.client.scale("few", 4)
    cluster.push("2", "import time\ntime.sleep(600)\n")
    events = cluster.client.update("d", "2", timeout_s=5)
    next(events)
    with pytest.raises(Conflict, match="being updated"):
        cluster.client.scale("d", 3)
    assert list(events)[-1]["phase"] == "failed"
    assert [row["detail"] for row in cluster.client.audit("d") if row["action"] == "scale"] == []
