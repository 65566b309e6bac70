"""Nodes are drained of slots that have replicas, while queries run and while nodes are lost: each event counts once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.conftest import bound, wait_until
from tests.support.node_query import Query
from tests.support.nodes import Nodes
from tests.support.replicated import NODES, lost, placement, replicated, whole
from tests.support.seeds import seeds
from udo_cli.platform import remote

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three nodes with the slots of `count` and the one slot of `one`, each slot with a replica."""
    with replicated() as made:
        yield made


def drain(cluster: Nodes, node: str) -> list[str]:
    """Drain the node as `udo node drain` does; return the messages."""
    said: list[str] = []
    assert remote.await_drained(cluster.client, node, [], bound(120), said.append) == []
    return said


def test_a_drained_node_s_slots_go_to_nodes_that_hold_them_and_replicas_are_made_elsewhere(cluster: Nodes) -> None:
    query, said = Query(cluster, "drained"), list[str]()
    query.epoch("a", wait_s=60)
    query.tried("ac", lambda: said.extend(drain(cluster, "b")))
    assert any(text.startswith("count: its slots") for text in said)
    for name in ("count", "one"):
        now = placement(cluster, name)
        assert set(now["nodes"]) <= {"a", "c"}
        for owner, held in zip(now["nodes"], now["replication"]["counted"], strict=True):
            assert {owner, *held} == {"a", "c"}
    wait_until(lambda: not cluster.groups("b", "count"), 60, "what it had to be removed")
    query.tried("bc", lambda: cluster.lose("b"))
    query.restart()
    cluster.start("b")
    query.tried("bb", lambda: None)

    cluster.client.drain("a")
    (left,) = [d for d in cluster.client.drain("c") if d["deployment"] == "count"]
    assert not left["waits"] and "--undo" in left["why"]
    query.epoch("b", wait_s=60)
    for node in NODES:
        cluster.client.drain(node, undo=True)
    whole(cluster)


@pytest.mark.parametrize("seed", seeds(2))
def test_epochs_count_once_when_nodes_are_lost_at_any_moment_of_a_drain(cluster: Nodes, seed: int) -> None:
    query = Query(cluster, f"drained, seed {seed}")
    query.epoch("a", wait_s=60)
    for _ in range(2):
        drained, gone = query.orders.choice(NODES), query.orders.choice(NODES)
        drained_while_one_is_lost(cluster, query, drained, gone)
        assert drained not in placement(cluster)["nodes"]
        query.tried(drained * 2, lambda: None)  # a slot may still be starting on its new node
        cluster.client.drain(drained, undo=True)
        whole(cluster)


def drained_while_one_is_lost(cluster: Nodes, query: Query, drained: str, gone: str) -> None:
    """Drain a node in the middle of an epoch; lose a node after a random number of decisions by the registry."""
    moment = placement(cluster)["version"] + query.orders.randrange(6)
    asked = "".join(query.orders.choices([node for node in NODES if node != gone], k=2))
    with ThreadPoolExecutor(1) as pool:
        under_way: list[Future[list[str]]] = []

        def strike() -> None:
            under_way.append(pool.submit(drain, cluster, drained))
            wait_until(lambda: placement(cluster)["version"] >= moment or under_way[0].done(), 120, "the moment to come")
            lost(cluster, gone)

        query.tried(asked, strike)
        under_way[0].result(bound(120))
