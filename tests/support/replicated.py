"""Three nodes with deployments whose slots have replicas, and waits for states of these."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.support.node_query import COUNT, KEYED
from tests.support.nodes import Nodes, nodes

NODES = "abc"
SLOTS = 3


@contextmanager
def replicated() -> Iterator[Nodes]:
    """The nodes, with the slots of `count` and one slot of `one`, each with a replica."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for the paths of sockets
    with nodes(top, *NODES, listening=NODES) as made:
        made.deploy("count", COUNT.format(version=1), slots=SLOTS, replicas=1, **KEYED)
        made.deploy("one", COUNT.format(version=1), slots=1, replicas=1, **KEYED)
        whole(made)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def placement(cluster: Nodes, name: str = "count") -> dict[str, Any]:
    """The placement that the registry has now."""
    return dict(cluster.client.deployment(name)["placement"])


def whole(cluster: Nodes) -> None:
    """Wait until each slot has all wanted replicas."""

    def there() -> bool:
        found = [placement(cluster, name)["replication"] for name in ("count", "one")]
        return all(len(held) == copies["wanted"] for copies in found for held in copies["counted"])

    wait_until(there, 60, "all slots to have their replicas")


def lost(cluster: Nodes, node: str) -> None:
    """Lose a node and its disk, and start another node of that name in its place."""
    cluster.lose(node, disk=True)
    wait_until(lambda: node not in placement(cluster)["nodes"], 60, "its slots to be on other nodes")
    cluster.start(node)
    wait_until(lambda: cluster.offers(node, "count"), 60, "it to know where the slots are")
    wait_until(lambda: all(n["live"] for n in cluster.client.nodes()), 60, "its first heartbeat")
