"""A keyed deployment with several slots: its groups are spread over them, and an epoch counts in all of them or in none."""

from __future__ import annotations

import os
import random
import signal

import pytest

from tests.conftest import wait_until
from tests.support.cluster import Cluster
from tests.support.keyed_node import exported
from tests.support.keyed_slots import COUNT, TIMED, Oracle, counted, deploy, events
from tests.support.split_attempt import Job
from udo_cli import state_file
from udo_protocol.errors import Conflict, UsageError


def test_answers_come_in_the_order_of_the_rows_and_a_session_is_one_over_all_slots(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(1)
    for epoch in range(3):
        batches = events(orders)
        assert counted(job.epoch(epoch, batches)) == oracle.epoch(batches)
    answers = counted(job.epoch(3, [[-k for k in range(1, 60)] * 3]))
    assert sorted(answers) == [2] * 59 + [3] * 59, "the first event of a negative key has no answer"
    wait_until(lambda: all(s.events_in > 20 for s in cluster.node.api.stats("d").slots), 20, "events in each slot")
    assert [s.state for s in cluster.node.api.status().slots] == ["owner"] * 3

    (listed,) = cluster.node.api.sessions("d").sessions
    assert (listed.session, listed.slot, listed.last_ended, listed.keys) == ("q", 0, 3, len(oracle.counts) + 59)
    parts = list(cluster.node.api.export_state("d", "q"))
    assert parts[0].header.keys == listed.keys
    groups = {part.piece.group for part in parts if part.HasField("piece")}
    assert groups >= {k % 128 for k in [*oracle.counts, *range(-59, 0)]}, "the groups of all slots"
    cluster.node.api.drop_state("d", "q", force=True)
    assert not cluster.node.api.sessions("d").sessions
    job.restart()
    assert counted(job.epoch(0, [[1, 2, 3]])) == [1, 1, 1], "nothing is left in any slot"


def test_an_attempt_that_dies_between_the_ends_of_two_slots_counts_once(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(2)
    job.epoch(0, first := events(orders))
    oracle.epoch(first)
    for epoch, ended in enumerate([(0,), (1, 2), (2,), (0, 1, 2)], 1):
        job.dies(epoch, batches := events(orders), ended)
        os.kill(cluster.node.api.status().slots[ended[-1]].pid, signal.SIGKILL)
        assert counted(job.epoch(epoch, batches)) == (expected := oracle.epoch(batches)), "the task is tried again"
        job.restart()
        assert counted(job.epoch(epoch, batches)) == expected, "the query is restarted before Spark has committed the epoch"
        job.dies(epoch, batches, ended)  # either of two equal attempts counts, in any slots that the newer one has ended
    assert counted(job.epoch(5, last := events(orders))) == oracle.epoch(last)


def test_the_watermark_of_every_slot_is_that_of_all_events(cluster: Cluster) -> None:
    deploy(cluster, source=TIMED, input={"a": "int64", "t": "timestamp[us]"}, event_time={"column": "t"})
    job, everywhere = Job(str(cluster.node.home / "node.sock"), times=True), list(range(128))
    assert job.epoch(0, [everywhere[::2]], 0, partition=0, partitions=2) == [0] * 64
    assert job.epoch(0, [everywhere[1::2]], 0, partition=1, partitions=2) == [0] * 64
    # One event of one group reaches one slot only, but its time is the watermark of the next epoch in all slots.
    assert job.epoch(1, [[1]], 60, partition=1, partitions=2) == [0]
    assert job.epoch(1, [], 0, partition=0, partitions=2) == []
    fired = job.epoch(2, [], 0, partition=0, partitions=2) + job.epoch(2, [], 0, partition=1, partitions=2)
    assert sorted(fired) == everywhere


def copied(c: Cluster, deployment: str, session: str, *, replace: bool = False) -> None:
    """Import the present state of session q of `d` as a session of a deployment."""
    file = c.blobs / "q.state"
    c.node.api.import_state(state_file.parts(file, exported(c.node.api, file), deployment, session, None, replace))


def also(c: Cluster, name: str, slots: int, version: str = "1") -> None:
    """Deploy that version under another name."""
    c.client.deploy(name, "t", version, slots=slots)
    wait_until(lambda: c.state(name)[0] == "answering", 60, "the deployment to answer")


@pytest.mark.long
def test_a_session_of_three_slots_is_imported_into_two_one_or_three(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(5)
    for epoch in range(2):
        assert counted(job.epoch(epoch, batches := events(orders))) == oracle.epoch(batches)
    next_batches = events(orders)
    expected = Oracle()
    expected.counts = oracle.counts.copy()
    answers = expected.epoch(next_batches)
    also(cluster, "two", 2)
    also(cluster, "one", 1)
    for deployment, session in (("two", "q"), ("one", "q"), ("d", "copy")):
        copied(cluster, deployment, session)
        (listed,) = (s for s in cluster.node.api.sessions(deployment).sessions if s.session == session)
        assert (listed.keys, listed.last_ended) == (len(oracle.counts), 1)
        with pytest.raises(Conflict, match=f"has a session {session} already.*--replace"):
            copied(cluster, deployment, session)
        copied(cluster, deployment, session, replace=True)
        another = Job(str(cluster.node.home / "node.sock"), deployment, session)
        assert counted(another.epoch(2, next_batches)) == answers
    with pytest.raises(Conflict, match="session q of 'two' is in use"):
        copied(cluster, "two", "q", replace=True)
    assert counted(job.epoch(2, next_batches)) == answers, "the first one is as it was"


@pytest.mark.long
def test_timers_and_event_times_are_imported_into_every_slot(cluster: Cluster) -> None:
    deploy(cluster, source=TIMED, input={"a": "int64", "t": "timestamp[us]"}, event_time={"column": "t"})
    node, everywhere = str(cluster.node.home / "node.sock"), list(range(128))
    assert Job(node, times=True).epoch(0, [everywhere], 30) == [0] * 128
    also(cluster, "two", 2)
    copied(cluster, "two", "q")
    job = Job(node, "two", times=True)
    assert job.epoch(1, [[1]], 60) == [0]
    assert sorted(job.epoch(2, [], 0)) == everywhere


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_epochs_count_once_whatever_dies_is_tried_again_or_updated(cluster: Cluster, seed: int) -> None:
    """Random failures of one query: attempts die between ENDs, owners and the node manager are killed, the version is updated."""
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(seed)
    versions = {1}
    for epoch in range(12):
        batches = events(orders)
        expected = oracle.epoch(batches)
        for what in orders.sample(["dies", "owner", "restart", "update", "manager", "nothing"], 2):
            if what == "dies":
                job.dies(epoch, batches, orders.sample(range(3), orders.randint(0, 3)))
            elif what == "owner":
                os.kill(orders.choice([s.pid for s in cluster.node.api.status().slots if s.pid]), signal.SIGKILL)
            elif what == "restart":
                job.restart()
            elif what == "manager" and epoch % 3 == 0:
                cluster.node.kill()
                cluster.start_node()
            elif what == "update":
                new = str(max(versions) + 1)
                cluster.push(new, COUNT.format(version=new), key=["a"])
                assert list(cluster.client.update("d", new))[-1]["phase"] == "done"
                versions.add(int(new))
        answers = job.epoch(epoch, batches)
        assert counted(answers) == expected, f"epoch {epoch}"
        assert {b // 1000 for b in answers} == {max(versions)}, "every slot has the version"


def test_dead_letters_of_all_slots_are_listed_and_take_part_in_the_next_epoch(cluster: Cluster) -> None:
    fails = "        if event['a'] % 10 == 3: raise ValueError('unlucky')\n"
    before, after = COUNT.split("        n =")
    cluster.push("1", (before + fails + "        n =" + after).format(version=1), key=["a"])
    cluster.client.deploy("d", "t", "1", slots=3, policy="dead-letter")
    wait_until(lambda: cluster.state()[0] == "answering", 60, "the deployment to answer")
    job, api = Job(str(cluster.node.home / "node.sock")), cluster.node.api
    assert counted(job.epoch(0, [list(range(128))])) == [1] * (128 - 13)
    letters = list(api.dead_letters("d"))
    assert len(letters) == 13 and {letter.slot for letter in letters} == {s.slot for s in api.status().slots}

    cluster.push("2", COUNT.format(version=2), key=["a"])
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    api.replay_dead_letters("d", everything=True)
    assert sorted(job.epoch(1, [[3]])) == [*[2001] * 13, 2002], "the event, then the letters, that of the same key after it"
    job.epoch(2, [[1]])
    wait_until(lambda: not list(api.dead_letters("d")), 20, "the letters to go")


@pytest.mark.long
def test_what_several_keyed_slots_do_not_do_yet_is_refused_with_what_to_do(cluster: Cluster) -> None:
    job = deploy(cluster, slots=2)
    job.epoch(0, [[1, 2, 3]])
    with pytest.raises(UsageError, match="3 key groups: expected at most as many slots, got 4"):
        cluster.client.deploy("few", "t", "1", slots=4, limits={"key_groups": 3})


# The next state version: the count has another name.
MIGRATED = COUNT.replace('"n"', '"m"') + "    def migrate(self, old, from_version): return {{'m': old['n']}}\n"


def _migrated(c: Cluster) -> Job:
    """Return a query on 3 slots with 60 keys seen once, after an update to a version with another form of state."""
    job = deploy(c)
    assert counted(job.epoch(0, [list(range(60))])) == [1] * 60
    c.push("2", MIGRATED.format(version=2), key=["a"], state_version=1, migrates_from=[0])
    assert list(c.client.update("d", "2"))[-1]["phase"] == "done"
    return job


def _versions(c: Cluster) -> list[str]:
    return [s.version for s in c.node.api.status().slots]


def test_a_version_that_cannot_read_the_newer_ones_state_comes_back_in_every_slot(cluster: Cluster) -> None:
    """It processes again all that the newer version has answered: an ended epoch, one that ended in one slot only, and single events."""
    job, keys = _migrated(cluster), list(range(60))
    assert job.epoch(1, [keys, keys[:20]]) == [2002] * 60 + [2003] * 20
    job.dies(2, [keys[::2]], (1,))
    os.kill(cluster.node.api.status().slots[2].pid, signal.SIGKILL)
    job.dies(2, [keys[::3]], ())
    last = list(cluster.client.rollback("d"))[-1]
    assert last["phase"] == "done", last
    assert _versions(cluster) == ["1"] * 3
    assert job.epoch(2, [keys]) == [1004] * 20 + [1003] * 40
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    assert job.epoch(3, [keys]) == [2005] * 20 + [2004] * 40, "and again"


@pytest.mark.long
def test_it_comes_back_in_no_slot_if_one_has_nothing_kept(cluster: Cluster) -> None:
    job, second = _migrated(cluster), cluster.node.api.status().slots[1].slot
    assert job.epoch(1, [list(range(60))]) == [2002] * 60
    for _ in cluster.node.api.move_groups("d", [0, 1], second, "cpal", 30):
        pass
    refused = list(cluster.client.rollback("d"))[-1]
    assert refused["phase"] == "failed" and "No state from before an update is kept" in refused["detail"], refused
    assert _versions(cluster) == ["2"] * 3
    assert job.epoch(2, [list(range(60))]) == [2003] * 60
