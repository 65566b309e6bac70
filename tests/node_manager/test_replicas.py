"""Replicas of keyed slots over three nodes: ENDed epochs survive the loss of a node with its disk; a node that is cut off ENDs nothing.

All tests use the same nodes, and each but the last leaves every slot with a replica.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from node_manager.manager import Manager
from node_manager.replicas.copies import COPIES_FROM
from node_manager.servers.access import connect
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import add, put_image
from tests.support.canaries import Watched
from tests.support.keyed_node import exported
from tests.support.lanes import opened
from tests.support.node_commands import udo
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes
from tests.support.replicated import NODES, SLOTS, lost, placement, replicated, whole
from tests.support.seeds import seeds
from tests.support.split_attempt import Job
from udo_cli import state_file
from udo_cli.platform import remote
from udo_cli.text import inspect_text
from udo_protocol.errors import Conflict, UdoError, Unavailable
from udo_protocol.queue.keys import REPLICAS, SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state import replication
from udo_protocol.state.group_map import FIRST_VERSION
from udo_protocol.state.placement import Placement, Replication

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three nodes with the slots of `count` and the one slot of `one`, each slot with a replica."""
    with replicated() as made:
        yield made


@contextmanager
def stopped(cluster: Nodes, node: str) -> Iterator[None]:
    """Stop a node's manager; its servers and instances go on."""
    process = cluster.daemons[node].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


class Announced:
    """A lock that signals when somebody asks for it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.asked = lock, Event()

    def __enter__(self) -> None:
        self.asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_deployment_can_begin_while_the_node_looks_which_copies_it_is_to_keep(
    manager: Manager, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One asks for copies that are to become its slots, the other for slots that were made from its copies."""
    copies, wanted = manager.copies, WantedDeployment("d", "t", "1", put_image(home, add(1)))
    place = Placement(1, ("n",), False, made=1, replication=Replication(1, {"n": manager.incarnation}, ((),), ({},), (FIRST_VERSION,)))
    across = SimpleNamespace(node="n", find=lambda name: place, placements=lambda: [("d", place)])
    lock, in_use = Announced(copies.lock), copies.in_use
    monkeypatch.setattr(copies, "_across", across)
    monkeypatch.setattr(copies, "lock", lock)
    with copies.state() as state:
        state.call("HSET", REPLICAS, "1 0 gone", COPIES_FROM)  # the copy of a slot that is not placed here any more
    deploying = Thread(target=manager.deploy, args=(wanted, 30), daemon=True)

    def looked(name: str, number: int) -> bool:
        lock.asked.clear()
        deploying.start()
        assert lock.asked.wait(bound(20))
        return in_use(name, number)

    monkeypatch.setattr(copies, "in_use", looked)
    keeping = Thread(target=copies.keep_wanted, daemon=True)
    keeping.start()
    keeping.join(bound(20))
    assert not keeping.is_alive(), "each waits for the other"
    deploying.join(bound(30))
    assert not deploying.is_alive() and manager.deployments.get("d") is not None


def test_what_was_ended_is_on_another_node_when_a_node_is_lost_with_its_disk_also_behind_an_update(cluster: Nodes) -> None:
    query = Query(cluster, "lost")
    query.epoch("c", wait_s=60)
    cluster.push("count", "2", COUNT.format(version=2), **KEYED)
    query.version = 2

    def updated() -> None:
        assert list(cluster.client.update("count", "2"))[-1]["phase"] == "done"

    query.tried("ab", updated)
    query.tried("ac", lambda: lost(cluster, "b"))
    whole(cluster)
    query.tried("bc", lambda: None)


def test_a_session_that_is_dropped_holds_up_no_replica(cluster: Nodes) -> None:
    dropped, stays = Query(cluster, "dropped"), Query(cluster, "stays")
    dropped.epoch("a", wait_s=60)
    stays.epoch("b", wait_s=60)
    assert udo(cluster, "state", "drop", "count", "dropped", "--yes", "--force")["keys"] == len(dropped.keys)
    for node in "abc":
        stays.epoch(node, wait_s=60)
    dropped.restart()
    dropped.job.wait_s = 60
    lost(cluster, "c")
    assert [b % 1000 for b in dropped.job.epoch(0, [[1, 50, 100]])] == [1] * 3
    whole(cluster)
    stays.epoch("a", wait_s=60)


def test_what_was_imported_is_on_another_node_when_a_node_is_lost_with_its_disk(cluster: Nodes, tmp_path: Path) -> None:
    query, file = Query(cluster, "source"), tmp_path / "source.state"
    query.epoch("c", wait_s=60)
    summary = exported(cluster.daemons["a"].api, file, "count", "source")
    cluster.daemons["b"].api.import_state(state_file.parts(file, summary, "count", "brought", 0, False))
    lost(cluster, "a")
    job, keys = Job(cluster.address("b"), "count", "brought", tls=cluster.tls), sorted(query.counts)
    job.wait_s = 60
    assert [b % 1000 for b in job.epoch(0, [keys])] == [query.counts[k] + 1 for k in keys]
    whole(cluster)


def test_a_canary_is_also_tried_in_the_slots_of_a_lost_node(cluster: Nodes) -> None:
    cluster.deploy("tried", COUNT.format(version=1), slots=3, replicas=1, **KEYED)
    job, everywhere = Job(cluster.address("a"), "tried", tls=cluster.tls), [10, 50, 100]
    job.wait_s = 60
    assert job.epoch(0, [everywhere]) == [1001] * 3
    wait_until(lambda: all(len(held) == 1 for held in placement(cluster, "tried")["replication"]["counted"]), 60, "its replicas")
    cluster.push("tried", "2", COUNT.format(version=1) + "# 2\n", **KEYED)
    canary = Watched(cluster, 3600, "errors>0", "different>0", percent=100, name="tried").sharing()
    job.epoch(1, [everywhere])
    canary.counted(events=3)
    lost(cluster, "b")

    def trying() -> list[int]:
        mine = [[s.canary for s in cluster.daemons[node].api.status().slots if s.deployment == "tried"] for node in "ac"]
        return sorted(len([text for text in told if "tested by 2" in text]) for told in mine)

    wait_until(lambda: trying() == [1, 2], 60, "the canary to begin in the lost node's slot")
    assert job.epoch(2, [everywhere]) == [1003] * 3
    canary.counted(events=6)
    list(cluster.client.rollback("tried"))
    assert canary.end()["phase"] == "rolled_back"
    assert job.epoch(3, [everywhere]) == [1004] * 3
    cluster.client.undeploy("tried", drop_state=True)
    whole(cluster)


def test_an_end_waits_for_its_replica_until_the_registry_gives_it_up_which_never_happens_while_it_is_away(cluster: Nodes) -> None:
    query = Query(cluster, "away")
    query.epoch("a", wait_s=60)
    job = Job("", "one", "waits", tls=cluster.tls)
    before = placement(cluster, "one")
    owner, holder = before["nodes"][0], before["replication"]["counted"][0][0]
    job.node, job.wait_s = cluster.address(owner), 60
    assert job.epoch(0, [[1, 2]]) == [1001, 1001]
    (keys,) = {SlotKeys("one", s.slot) for s in cluster.daemons[owner].api.status().slots if s.deployment == "one"}
    state = connect(cluster.daemons[owner].home, "state")
    cluster.registry.stop()
    query.epoch("b", wait_s=60)
    query.epoch("c", wait_s=60)
    with ThreadPoolExecutor(1) as pool, stopped(cluster, holder):
        waits = pool.submit(job.epoch, 1, [[1, 1]])
        wait_until(lambda: replication.lacking(state, keys)[1] == [holder], 60, "the epoch's end to be on the owner's disk")
        cluster.start_registry()
        assert not waits.done(), "an END was answered that its replica does not hold"
        assert waits.result(bound(120)) == [1002, 1003]
        now = placement(cluster, "one")
        assert holder not in now["replication"]["counted"][0] and now["nodes"] == before["nodes"]
    state.close()
    whole(cluster)


def test_an_owner_that_was_cut_off_ends_nothing_and_its_state_is_removed(cluster: Nodes) -> None:
    old, new = (Job("", "one", "cut off", tls=cluster.tls) for _ in range(2))
    now = placement(cluster, "one")
    owner, holder = now["nodes"][0], now["replication"]["counted"][0][0]
    old.node, old.wait_s = cluster.address(owner), 60
    assert old.epoch(0, [[1, 2]]) == [1001, 1001]
    opened, go_on = Event(), Event()

    def events() -> Iterator[list[int]]:
        yield [1]
        opened.set()
        assert go_on.wait(bound(60))
        yield [1, 2]

    state = connect(cluster.daemons[owner].home, "state")
    (keys,) = {SlotKeys("one", s.slot) for s in cluster.daemons[owner].api.status().slots if s.deployment == "one"}
    with ThreadPoolExecutor(1) as pool:
        cut_off = pool.submit(old.epoch, 1, events())
        assert opened.wait(bound(60))
        with stopped(cluster, owner):
            wait_until(lambda: placement(cluster, "one")["nodes"] == [holder], 60, "the slot to be where its replica is")
            go_on.set()
            wait_until(lambda: replication.lacking(state, keys)[1] == [holder], 60, "the former owner to wait with its END")
            new.node, new.wait_s, new._attempts = cluster.address(holder), 60, 100
            answers: list[int] = []

            def succeeded() -> bool:
                try:
                    answers[:] = new.epoch(1, [[1], [1, 2]])
                except UdoError as e:
                    assert e.retry
                    return False
                return True

            wait_until(succeeded, 90, "the epoch to succeed where the replica is")
            assert answers == [1002, 1003, 1002]
            assert not cut_off.done(), "a former owner has answered an END that no replica holds"
        with pytest.raises(UdoError):
            cut_off.result(bound(120))
    wait_until(lambda: not state.call("KEYS", f"{keys}*"), 60, "what it had to be removed")
    state.close()
    whole(cluster)
    assert new.epoch(2, [[1, 2]]) == [1004, 1003]


@pytest.mark.parametrize("seed", seeds(1))
def test_epochs_count_once_whichever_nodes_are_lost_while_they_are_under_way(cluster: Nodes, seed: int) -> None:
    query = Query(cluster, f"seed {seed}")
    for _ in range(2):
        gone = query.orders.choice(NODES)
        left = [node for node in NODES if node != gone]
        if query.orders.random() < 0.5:
            query.tried("".join(query.orders.choices(left, k=2)), lambda gone=gone: lost(cluster, gone))
        else:
            query.epoch(left[0], wait_s=60)
            query.dies(left[1], query.orders.sample(range(SLOTS), 2), lambda gone=gone: lost(cluster, gone))
        whole(cluster)


def test_the_command_line_waits_for_replicas_and_shows_where_they_are(cluster: Nodes) -> None:
    said: list[str] = []
    found = remote.await_replicas(cluster.client, "count", 60, said.append)
    assert said == [f"{SLOTS} of {SLOTS} replicas hold their slot's state"]
    copies = found["placement"]["replication"]["counted"]
    shown = CliRunner().invoke(shows, obj=found)
    for place, (node, held) in enumerate(zip(found["placement"]["nodes"], copies, strict=True)):
        assert re.search(rf"^ *{place} +{node} +{held[0]} *$", shown.output, re.MULTILINE), shown.output
    with pytest.raises(Conflict, match="has replicas"):
        cluster.client.scale("count", 4)


@click.command
@click.pass_obj
def shows(found: dict[str, Any]) -> None:
    """Print a deployment as `udo inspect` does."""
    inspect_text.deployment({**found, "key_groups": [], "queries": [], "nodes_not_asked": []})


def test_with_no_holder_left_the_loss_is_reported_and_nothing_begins_anew(cluster: Nodes) -> None:
    query = Query(cluster, "nobody")
    query.epoch("a", wait_s=60)
    now = placement(cluster)
    owner = now["nodes"][0]
    holder = now["replication"]["counted"][0][0]
    third = next(node for node in NODES if node not in (owner, holder))
    cluster.registry.stop()  # so that it finds both missing at once
    for node in (owner, holder):
        cluster.lose(node, disk=True)
    cluster.start_registry()
    wait_until(lambda: owner in placement(cluster)["replication"]["lost"], 60, "the loss to be reported")
    for node in (owner, holder):
        cluster.start(node)

    def refused() -> bool:
        try:
            opened(cluster.daemons[third].api, "count", "looks", session="nobody", wait_ms=0, run="r1", call="c", plan=1)
        except Unavailable as e:
            return "lost the disk" in str(e)
        pytest.fail("a lane was opened in a slot that nobody holds")

    wait_until(refused, 60, "the error to say what was lost")
    assert placement(cluster)["nodes"][0] == owner
