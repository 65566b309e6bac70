"""Diffs, canaries and recordings of a keyed deployment with several slots: each slot is compared, or recorded, by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.support.canaries import Watched
from tests.support.cluster import Cluster
from tests.support.diffs import Running
from tests.support.keyed_slots import COUNT, counted, deploy
from tests.support.recorded_query import by_lane, queue
from tests.support.recording import Recorder
from tests.support.split_attempt import Job
from udo_protocol.errors import Conflict, NotFound, UdoError
from udo_protocol.queue.frame import ADOPT
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import moving

# A key of each of three slots, in key groups that a canary of half of the groups tries; and a key of each slot in other groups.
TRIED, OTHERS = [10, 50, 100], [11, 51, 101]
# Counts as version 1 does, but counts key 100 twice.
ODD = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1 + (event["a"] == 100)
        yield {"b": n + 1000}
"""


def comparing(c: Cluster) -> dict[int, int]:
    """Return slot -> process id of the instance that compares."""
    return {r["slot"]: int(r["handle"]["data"]["pid"]) for r in c.node.records() if r.get("comparing") and r["state"] == "standby"}


def begun(c: Cluster, source: str, *rollback_if: str, percent: float = 50) -> tuple[Job, Watched]:
    """Return a query of version 1 in three slots after its first epoch, and a canary of `source` that has begun."""
    job = deploy(c)
    assert counted(job.epoch(0, [TRIED, OTHERS])) == [1] * 6
    c.push("2", source, key=["a"])
    return job, Watched(c, 3600, *rollback_if, percent=percent, min_events=9).sharing()


@pytest.mark.short
def test_a_canary_is_tried_in_every_slot_and_promoted_in_all_with_their_state(cluster: Cluster) -> None:
    job, canary = begun(cluster, COUNT.format(version=1) + "# 2\n", "errors>0", "different>0")
    assert counted(job.epoch(1, [TRIED * 3, OTHERS])) == [2] * 3 + [3] * 3 + [4] * 3 + [2] * 3
    (found,) = canary.counted(events=9, compared=3).values()
    assert (found["events"], found["errors"], found["different"]) == (9, 0, 0), "of the groups that are tried, of all slots"
    slots = cluster.node.api.status().slots
    assert all("64 of 128 key groups tested by 2" in s.canary and "3 events" in s.canary for s in slots), [s.canary for s in slots]
    with pytest.raises(Conflict, match="the version of deployment 'd' is being changed"):
        list(cluster.node.api.move_groups("d", [10], slots[1].slot))

    assert list(cluster.client.promote("d"))[-1]["phase"] == "done"
    assert canary.end()["phase"] == "done"
    assert [s.version for s in cluster.node.api.status().slots] == ["2"] * 3
    assert counted(job.epoch(2, [TRIED, OTHERS])) == [5] * 3 + [3] * 3
    wait_until(lambda: not comparing(cluster), 20, "the comparing instances to go")


@pytest.mark.long
def test_what_a_single_slot_answers_otherwise_rolls_the_canary_back(cluster: Cluster) -> None:
    job, canary = begun(cluster, ODD, "different>0")
    job.epoch(1, [TRIED[:2], OTHERS])
    job.epoch(2, [TRIED])
    last = canary.end()
    assert last["phase"] == "rolled_back" and "different>0 holds" in last["detail"], last
    assert counted(job.epoch(3, [TRIED])) == [4, 4, 3]
    wait_until(lambda: not comparing(cluster), 20, "the comparing instances to go")


@pytest.mark.long
def test_where_a_canary_s_instance_dies_it_begins_anew_and_elsewhere_it_goes_on(cluster: Cluster) -> None:
    job, canary = begun(cluster, COUNT.format(version=1) + "# 2\n", "errors>1", "different>0")
    job.epoch(1, [TRIED])
    canary.counted(events=3)
    before = comparing(cluster)
    struck = sorted(before)[1]
    os.kill(before[struck], signal.SIGKILL)
    wait_until(lambda: comparing(cluster).get(struck) not in (None, before[struck]), 60, "the canary to begin anew")
    canary.counted(errors=1)
    epoch = 2

    def compared_there() -> bool:
        nonlocal epoch
        job.epoch(epoch, [TRIED])
        epoch += 1
        view = {s.slot: s.canary for s in cluster.node.api.status().slots}
        return "compared" in view[struck] and " 0 events" not in view[struck]

    wait_until(compared_there, 60, "frames to be compared there again")
    now = comparing(cluster)
    assert {n: pid for n, pid in now.items() if n != struck} == {n: pid for n, pid in before.items() if n != struck}
    list(cluster.client.rollback("d"))
    assert canary.end()["phase"] == "rolled_back"


@pytest.mark.long
def test_a_diff_compares_every_slot_and_ends_when_key_groups_move(cluster: Cluster) -> None:
    job = deploy(cluster)
    job.epoch(0, [TRIED, OTHERS])
    cluster.push("2", ODD, key=["a"])
    digest = cluster.client.version("t", "2")["digest"]
    diff = Running(cluster.node, digest, for_s=3600).begun()
    job.epoch(1, [TRIED[:2], OTHERS])
    diff.seen(8)  # five frames and three ENDs
    assert diff.reports[-1]["different"] == 0
    job.epoch(2, [TRIED])
    wait_until(lambda: bool(diff.examples), 30, "the difference to be told")
    assert [e["event"]["a"] for e in diff.examples] == [100], "once: differences do not accumulate"
    wait_until(lambda: diff.reports[-1]["seen"] >= 14, 30, "all to be compared")
    assert diff.reports[-1]["different"] == 1
    assert all(s.diff for s in cluster.node.api.status().slots)

    _, second, _ = (s.slot for s in cluster.node.api.status().slots)
    list(cluster.node.api.move_groups("d", [10, 11], second))
    assert counted(job.epoch(3, [TRIED[:2], OTHERS])) == [4, 4, 3, 3, 3]
    wait_until(lambda: diff.error is not None, 60, "the diff to end")
    assert isinstance(diff.error, Conflict) and "key groups were moved out of the slot or into it" in str(diff.error)
    assert diff.reports[-1]["different"] == 1, "nothing was compared with state that is not there"
    again = Running(cluster.node, digest, for_s=3600).begun()
    job.epoch(4, [TRIED[:2], OTHERS])
    again.seen(6)
    assert again.reports[-1]["different"] == 0
    with pytest.raises(UdoError, match="use: udo move"):
        job.forges(5, ADOPT, [])  # until the checkpoint after such a frame, nothing else shows that the groups have changed
    wait_until(lambda: again.error is not None, 60, "that one to end, too")
    assert isinstance(again.error, Conflict) and "key groups were moved out of the slot or into it" in str(again.error)


@pytest.mark.long
def test_a_recording_of_each_slot_replays_to_what_that_slot_has_answered(
    cluster: Cluster, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    job = deploy(cluster)
    job.epoch(0, [TRIED, OTHERS])
    with pytest.raises(NotFound, match="'d' has no slot 1 on node n1; it has 0, 1000, 1001"):
        next(cluster.node.api.record("d", 1, slot=1))
    made = {s.slot: Recorder(cluster.node.api, "d", tmp_path / f"r{s.slot}", slots=[s.slot]) for s in cluster.node.api.status().slots}
    job.epoch(1, [[*TRIED, 10], [11]])
    with queue(cluster.node) as conn:
        moving.prepare(conn, SlotKeys("d", 1000), 99, [100], 1001)
    job.epoch(2, [TRIED])
    emitted = {s.slot: s.emitted for s in cluster.node.api.status().slots}
    for number in (0, 1000):
        assert made[number].stop(emitted[number]).sessions == 1
    operator = local(COUNT.format(version=1), entry="op:run", input={"a": "int64"}, output={"b": "int64"}, key=["a"])
    for number, expected in ((0, [1002, 1003, 1002, 1004]), (1000, [1002, 1003])):
        _, answers = by_lane(udo, operator, tmp_path / f"r{number}")
        assert [b for rows in answers.values() for (b,) in rows] == expected
    list(cluster.node.api.move_groups("d", [100], 0))
    assert made[1001].done().reason == "key groups were moved to other slots or from there"
