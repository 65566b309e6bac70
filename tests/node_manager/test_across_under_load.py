"""Queries on a deployment over three nodes whose instances, managers and servers die in the middle of an epoch: each epoch counts once."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from tests.support.seeds import seeds

pytestmark = pytest.mark.long
NODES = "abc"
SLOTS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three nodes with the slots of `count`; a has two of them."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, *NODES, listening=NODES) as made:
        made.deploy("count", COUNT.format(version=1), slots=SLOTS, **KEYED)
        assert made.client.deployment("count")["placement"]["nodes"] == ["a", "b", "c", "a"]
        yield made
    shutil.rmtree(top, ignore_errors=True)


class Strikes:
    """Things that may happen to a node, or to the deployment, in the middle of a query's epoch."""

    def __init__(self, cluster: Nodes, query: Query) -> None:
        self._cluster, self._query = cluster, query

    def instance(self, node: str) -> None:
        """Kill one of its instances."""
        api = self._cluster.daemons[node].api
        wait_until(lambda: any(s.pid for s in api.status().slots), 30, f"an instance on {node}")
        os.kill(self._query.orders.choice([s.pid for s in api.status().slots if s.pid]), signal.SIGKILL)

    def manager(self, node: str) -> None:
        """Kill its manager and start it again; servers and instances go on."""
        self._cluster.daemons[node].kill()
        self._cluster.start(node)

    def lost(self, node: str) -> None:
        """Kill all of its processes and start it again; its disk stays."""
        self._cluster.lose(node)
        self._cluster.start(node)

    def stopped(self, node: str) -> None:
        """Stop its manager and start it again: the registry does not know the node for a while."""
        self._cluster.daemons[node].stop()
        self._cluster.start(node)

    def update(self, _: str) -> None:
        """Update the deployment to its next version."""
        client, query = self._cluster.client, self._query
        query.version = int(client.deployment("count")["version"]) + 1
        self._cluster.push("count", str(query.version), COUNT.format(version=query.version), **KEYED)
        wait_until(lambda: [n["live"] for n in client.nodes()] == [True] * len(NODES), 30, "all nodes to be live")
        assert list(client.update("count", str(query.version)))[-1]["phase"] == "done"


KINDS = ("instance", "manager", "lost", "stopped", "update")


@pytest.mark.parametrize("ended", [[0], [1], [1, 2], [0, 3]])
def test_an_epoch_that_some_nodes_have_ended_when_one_is_lost_counts_once(cluster: Nodes, ended: list[int]) -> None:
    query = Query(cluster, f"between the ends at {ended}")
    query.epoch("c", wait_s=60)
    query.dies("c", ended, lambda: Strikes(cluster, query).lost("b"))
    query.dies("a", ended, lambda: None)
    query.epoch("b", wait_s=60)


@pytest.mark.parametrize("seed", seeds(2))
def test_epochs_count_once_whatever_dies_on_whichever_node_while_they_are_under_way(cluster: Nodes, seed: int) -> None:
    query = Query(cluster, f"seed {seed}")
    orders, strikes = query.orders, Strikes(cluster, query)
    for what in orders.sample(KINDS * 2, 2 * len(KINDS)):
        if orders.random() < 0.3:  # between two epochs: its tasks end before it is started again
            query.restart()
        query.tried("".join(orders.choices(NODES, k=2)), partial(getattr(strikes, what), orders.choice(NODES)))
