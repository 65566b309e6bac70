"""A deployment gets more or fewer replicas while a query runs: each event counts once, whichever nodes are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from node_manager.servers import access
from tests.conftest import bound, wait_until
from tests.support.node_commands import udo
from tests.support.node_query import Query
from tests.support.nodes import Nodes
from tests.support.replicated import NODES, SLOTS, lost, placement, replicated, whole
from tests.support.seeds import seeds
from udo_protocol.queue import keys

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three nodes with the slots of `count` and the one slot of `one`, each slot with a replica."""
    with replicated() as made:
        yield made


def held(c: Nodes) -> list[int]:
    """Return the number of replicas that hold each slot of `count`."""
    return [len(nodes) for nodes in placement(c)["replication"]["counted"]]


def copies(c: Nodes) -> list[str]:
    """Return the nodes that have a copy of a slot of `count`."""
    found = []
    for node in NODES:
        with contextlib.closing(access.connect(c.daemons[node].home, "state")) as state:
            names = [bytes(field).decode().split(" ")[-1] for field in state.call("HKEYS", keys.REPLICAS)]
            found += [node] * ("count" in names)
    return found


def test_with_two_replicas_two_nodes_may_be_lost_at_once(cluster: Nodes) -> None:
    query = Query(cluster, "two")
    query.epoch("a", wait_s=60)
    query.tried("bc", lambda: udo(cluster, "scale", "count", "--replicas", 2))
    assert held(cluster) == [2] * SLOTS
    query.epoch("b", wait_s=60)

    def both_lost() -> None:
        for node in "bc":
            cluster.lose(node, disk=True)
        wait_until(lambda: set(placement(cluster)["nodes"]) == {"a"}, 60, "all slots to be on the node that is left")

    query.tried("aa", both_lost)
    for node in "bc":
        cluster.start(node)
        wait_until(lambda node=node: cluster.offers(node, "count"), 60, "it to be there again")  # type: ignore[misc]
    udo(cluster, "scale", "count", "--replicas", 1)
    assert held(cluster) == [1] * SLOTS
    whole(cluster)
    query.tried("cb", lambda: lost(cluster, "a"))
    whole(cluster)


def test_without_replicas_key_groups_move_and_slots_come_and_go_and_with_replicas_again_all_of_that_survives(cluster: Nodes) -> None:
    query = Query(cluster, "without")
    query.epoch("a", wait_s=60)
    last = cluster.daemons["a"].api.places("count").slots[-1]
    for words in (("scale", "count", 5), ("scale", "count", 2), ("move", "count", "--groups", 5, "--to", f"{last.node}:{last.slot}")):
        assert "udo scale count --replicas 0" in udo(cluster, *words, code=4)
    udo(cluster, "scale", "count", "--replicas", 0)
    wait_until(lambda: not copies(cluster), 60, "what replicas held to be removed")
    query.tried("bc", lambda: udo(cluster, "scale", "count", SLOTS + 2))
    first = cluster.daemons["a"].api.places("count").slots[0]
    udo(cluster, "move", "count", "--groups", "120-127", "--to", f"{first.node}:{first.slot}")
    query.epoch("c", wait_s=60)
    query.tried("ab", lambda: udo(cluster, "scale", "count", SLOTS + 1))
    udo(cluster, "scale", "count", "--replicas", 1)
    assert held(cluster) == [1] * (SLOTS + 1)
    query.tried("bb", lambda: None)
    for gone in NODES:
        query.tried("".join(node for node in NODES if node != gone), lambda gone=gone: lost(cluster, gone))
        whole(cluster)
    query.restart()
    query.epoch("a", wait_s=60)


@pytest.mark.parametrize("seed", seeds(2))
def test_epochs_count_once_when_a_node_is_lost_at_any_moment_while_replicas_are_made_or_given_up(cluster: Nodes, seed: int) -> None:
    query = Query(cluster, f"changed, seed {seed}")
    query.epoch("a", wait_s=60)
    for count in query.orders.choice([(2, 1), (2, 2, 1)]):
        gone = query.orders.choice(NODES)
        changed_while_one_is_lost(cluster, query, count, gone)
        query.tried(gone * 2, lambda: None)


def changed_while_one_is_lost(cluster: Nodes, query: Query, count: int, gone: str) -> None:
    """Scale to `count` replicas in the middle of an epoch; lose a node after a random number of decisions by the registry."""
    moment = placement(cluster)["version"] + query.orders.randrange(8)
    asked = "".join(query.orders.choices([node for node in NODES if node != gone], k=2))
    with ThreadPoolExecutor(1) as pool:
        under_way: list[Future[None]] = []

        def strike() -> None:
            cluster.client.scale("count", replicas=count)
            under_way.append(pool.submit(whole, cluster))
            wait_until(lambda: placement(cluster)["version"] >= moment or under_way[0].done(), 120, "the moment to come")
            lost(cluster, gone)

        query.tried(asked, strike)
        under_way[0].result(bound(120))
    whole(cluster)
