"""Canaries with a real registry and a real node: a share of the lanes, a decision, and no event lost while they come and go."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Lane, add
from tests.registry.conftest import start
from tests.support.canaries import TWO, Watched
from tests.support.cluster import Cluster
from tests.support.lanes import opened
from tests.support.selection import long
from udo_interface import connect
from udo_protocol.errors import Conflict
from udo_protocol.queue.frame import ANSWER, ERROR

pytestmark = pytest.mark.long


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """Version 1 of t is deployed as d; version 2 has been pushed."""
    cluster.deploy(add(1))
    cluster.push("2", TWO)
    wait_until(lambda: [n["live"] for n in cluster.client.nodes()] == [True], 20, "the node to be live")
    return cluster


def version(lane: Lane) -> int:
    """Return the version that serves this lane."""
    return {2: 1, 101: 2}[lane.ask(1, 30)]


def test_ten_percent_means_each_tenth_lane_and_pinned_ones_do_not_count(two: Cluster) -> None:
    canary = Watched(two, 3600, percent=10).sharing()

    served = []
    for n in range(30):
        reply = opened(two.node.api, "d", f"l{n}")
        served.append(reply.version)
        if n % 7 == 0:
            assert opened(two.node.api, "d@1", f"p{n}").version == "1"

    assert [i + 1 for i, v in enumerate(served) if v == "2"] == [10, 20, 30]
    shown = [s for s in two.node.api.status().slots if s.canary]
    assert [(s.version, s.state, s.canary) for s in shown] == [("2", "owner", "10 % of new lanes")]
    list(two.client.rollback("d"))
    assert canary.end()["phase"] == "rolled_back"


def test_a_canary_that_holds_is_promoted_and_its_lanes_follow_later_updates(two: Cluster) -> None:
    canary = Watched(two, 3, "errors>0", "p99_ms>5000").sharing()
    lanes = [two.lane() for _ in range(4)]

    assert [version(lane) for lane in lanes] == [1, 2, 1, 2]
    assert canary.end()["phase"] == "done", canary.events

    assert [version(lane) for lane in lanes] == [2, 2, 2, 2]
    assert list(two.client.rollback("d"))[-1]["phase"] == "done"
    wait_until(lambda: [version(lane) for lane in lanes] == [1, 1, 1, 1], 30, "the canary's lanes to follow")


def test_a_canary_of_several_slots_is_one_slot_more_and_is_promoted_in_all(cluster: Cluster) -> None:
    cluster.deploy(add(1), slots=2)
    cluster.push("2", TWO)
    wait_until(lambda: [n["live"] for n in cluster.client.nodes()] == [True], 20, "the node to be live")
    canary = Watched(cluster, 2).sharing()
    lanes = [cluster.lane() for _ in range(4)]
    assert [version(lane) for lane in lanes] == [1, 2, 1, 2]
    assert len(cluster.node.api.status().slots) == 3
    assert canary.end()["phase"] == "done", canary.events
    assert [version(lane) for lane in lanes] == [2, 2, 2, 2]
    assert {slot.version for slot in cluster.node.api.status().slots} == {"2"}


SILENT = """
from udo_runtime import operator, stats
stats.Stats.publish = lambda *_, **__: None
@operator
def run(batch):
    return {"b": [a + 100 for a in batch.column("a").to_pylist()]}
"""


def test_a_canary_whose_runtime_publishes_no_counters_is_rolled_back_for_that(two: Cluster) -> None:
    two.push("3", SILENT)
    events = two.client.update("d", "3", canary={"percent": 100, "for_s": 12, "min_events": 1})
    next(e for e in events if e["phase"] == "sharing")

    assert two.lane().ask(1, 30) == 101

    last = list(events)[-1]
    assert last["phase"] == "rolled_back"
    assert "answered 1 frames, but its runtime publishes no counters" in last["detail"] and "docs/protocol.md" in last["detail"]


@pytest.mark.parametrize(
    ("event", "condition", "why"),
    [
        (-1, "errors>0", "errors>0 holds"),
        long(-2, "p99_ms>40", "p99_ms>40 holds"),
        long(-3, "errors>0", "errors>0 holds"),
        long(None, "errors>0", "saw 0"),
    ],
)
def test_a_canary_is_rolled_back_and_lanes_under_way_are_answered_on(two: Cluster, event: int | None, condition: str, why: str) -> None:
    canary = Watched(two, 3600 if event else 0.5, condition).sharing()
    lanes = [two.lane() for _ in range(4)]
    its = lanes[1]
    if event:
        assert [version(lane) for lane in lanes] == [1, 2, 1, 2]
        its.send([event])
        answered = its.receive(60).header
        # The death of an instance counts at once, so the serving version may answer the frame before the canary has given it up.
        serving_answers = event == -3 and answered.version == "1"
        assert answered.kind == (ANSWER if event == -2 or serving_answers else ERROR)

    last = canary.end()

    assert last["phase"] == "rolled_back" and why in last["detail"], last
    wait_until(lambda: version(lanes[3]) == 1, 30, "the canary's lanes to be answered by the serving version")
    assert [version(lane) for lane in (lanes[0], lanes[2])] == [1, 1]
    assert [version(two.lane()) for _ in range(4)] == [1, 1, 1, 1]
    assert two.client.deployment("d")["version"] == "1"


def test_a_canary_that_does_not_load_leaves_every_lane_where_it_was(two: Cluster) -> None:
    two.push("3", "import no_such_module\n")
    steps = list(two.client.update("d", "3", canary={"percent": 100, "for_s": 60}))
    assert steps[-1]["phase"] == "failed" and "no_such_module" in steps[-1]["detail"]
    assert version(two.lane()) == 1
    wait_until(lambda: [s.slot for s in two.node.api.status().slots] == [0], 20, "the canary's slot to go")


def test_a_manager_that_is_killed_and_comes_back_goes_on_with_the_canary(two: Cluster) -> None:
    canary = Watched(two, 3600, "errors>0").sharing()
    lanes = [two.lane(), two.lane()]
    assert [version(lane) for lane in lanes] == [1, 2]

    two.node.kill()
    assert [version(lane) for lane in lanes] == [1, 2]
    two.start_node()

    shares = lambda: [s.canary for s in two.node.api.status().slots if s.canary]  # noqa: E731
    wait_until(lambda: shares() == ["50 % of new lanes"], 30, "the canary to go on")
    assert [version(lane) for lane in lanes] == [1, 2]
    assert sorted(version(two.lane()) for _ in range(4)) == [1, 1, 2, 2]
    lanes[1].send([-1])
    assert lanes[1].receive().header.kind == ERROR
    assert canary.end()["phase"] == "rolled_back"


def test_lanes_of_a_canary_whose_files_are_gone_when_the_manager_comes_back_are_answered_by_the_deployments_version(two: Cluster) -> None:
    canary = Watched(two, 3600, "errors>0").sharing()
    lanes = [two.lane(), two.lane()]
    assert [version(lane) for lane in lanes] == [1, 2]
    [digest] = [s.digest for s in two.node.api.status().slots if s.canary]

    url = two.registry.url
    two.node.kill()
    two.registry.process.terminate()
    two.registry.process.wait(bound(10))
    shutil.rmtree(two.node.home / "images" / digest.replace(":", "-"))
    two.start_node(url)

    assert [version(lane) for lane in lanes] == [1, 1]
    two.registry.process = start(two.data, "--listen", url.removeprefix("http://")).process
    list(two.client.rollback("d"))
    assert canary.end()["phase"] == "rolled_back"


def test_a_registry_that_is_away_meanwhile_decides_when_it_is_back(two: Cluster) -> None:
    canary = Watched(two, 4, "errors>0").sharing()
    lanes = [two.lane(), two.lane()]
    url = two.registry.url
    two.registry.process.terminate()
    two.registry.process.wait(bound(10))
    assert [version(lane) for lane in lanes] == [1, 2]

    again = start(two.data, "--listen", url.removeprefix("http://"))
    two.registry.process = again.process

    last = canary.end()
    assert last["phase"] == "done", canary.events
    assert [version(lane) for lane in lanes] == [2, 2]


def test_what_belongs_to_a_canary_is_refused_while_one_runs(two: Cluster) -> None:
    canary = Watched(two, 3600).sharing()
    with pytest.raises(Conflict, match="udo rollback d"):
        two.client.undeploy("d")
    list(two.client.rollback("d"))
    assert canary.end()["phase"] == "rolled_back"
    two.client.undeploy("d")
    wait_until(lambda: not two.node.api.status().slots, 30, "all slots to go, the canary's too")


def clients(two: Cluster, stop: threading.Event, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Run one client after another; yield the values that each sent, and the answers to them."""
    for n in itertools.count():
        if stop.is_set():
            return
        came: list[int] = []
        with connect("d", node=str(two.node.home / "node.sock")) as client:
            client.add_listener(lambda answer, came=came: came.append(answer["b"]))  # type: ignore[misc]
            sent = list(range(n * count * 1000, n * count * 1000 + count * 1000, 1000))
            for a in sent:
                client.send({"a": a})
        yield sent, came


@pytest.mark.parametrize("seed", [1])
def test_canaries_come_and_go_and_owners_die_under_load_and_no_event_is_lost_doubled_or_reordered(two: Cluster, seed: int) -> None:
    stop, told, failures = threading.Event(), [], []

    def load() -> None:
        try:
            for sent, came in clients(two, stop, 200):
                told.append((sent, came))
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    ends = []
    try:
        for round_number in range(4):
            canary = Watched(two, 1.5, "errors>0" if round_number != 2 else "events>0", percent=50)
            with contextlib.suppress(AssertionError):
                canary.sharing()
            if round_number == 1:
                pid = next((s.pid for s in two.node.api.status().slots if s.canary), 0)
                if pid:
                    os.kill(pid, signal.SIGKILL)
            ends.append(canary.end()["phase"])
            if ends[-1] == "done":
                assert list(two.client.rollback("d"))[-1]["phase"] == "done"
    finally:
        stop.set()
        for thread in threads:
            thread.join(bound(120))
    assert not failures, failures
    assert ends[0] == "done" and ends[2] == "rolled_back" and set(ends) <= {"done", "rolled_back"}
    # The oracle: an answer is its event plus 1 or plus 100, by either version; events are 1000 apart.
    versions = set()
    for sent, came in told:
        assert [b - b % 1000 for b in came] == sent
        versions |= {b % 1000 for b in came}
    assert versions == {1, 100} and len(told) >= 8
