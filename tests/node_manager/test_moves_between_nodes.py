"""Key groups move between nodes while a query runs: each event counts once, whatever dies between any two steps, on either side."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Condition
from types import SimpleNamespace
from typing import Any

import pytest

from node_manager.config import DeploymentConfig
from node_manager.deployments.across import Across
from node_manager.deployments.between import Coming, MoveBetween, Ready
from node_manager.deployments.move_steps import Progress
from node_manager.deployments.taking import RemoteTaker
from node_manager.servers import access
from tests.conftest import wait_until
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from tests.support.seeds import seeds
from udo_protocol import ranges
from udo_protocol.errors import Conflict, NotFound, UdoError, Unauthorized, UsageError
from udo_protocol.node.api import connect_node
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import moving
from udo_protocol.state.carrying import Carried
from udo_protocol.state.moving import Intent

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a and b with the slots of `count`, of which a has two; and c, which has none."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", "c", listening="ab") as made:
        made.deploy("count", COUNT.format(version=1), slots=3, **KEYED)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def where(c: Nodes) -> dict[str, set[int]]:
    """Return node -> its key groups, as the node reports them."""
    return {n: {g for shown in c.groups(n, "count") for g in ranges.parsed(shown, 128)} for n in "ab"}


def moved(c: Nodes, asked: str, groups: Sequence[int], node: str, slot: int = 0, strategy: str = "") -> None:
    """Move the groups to that slot of that node, repeating the command whatever dies meanwhile; return when they are there."""

    def done() -> bool:
        with contextlib.suppress(UdoError):
            *_, last = c.daemons[asked].api.move_groups("count", groups, slot, strategy, node=node, wait_s=20)
            return bool(last.done)
        return False

    wait_until(done, 90, f"the groups to be on node {node}")
    assert where(c)[node] >= set(groups), where(c)


@pytest.mark.parametrize("strategy", ["cpal", "direct"])
def test_groups_that_move_between_nodes_in_the_middle_of_an_epoch_count_each_event_once_in_order(cluster: Nodes, strategy: str) -> None:
    query = Query(cluster, f"between {strategy}")
    assert where(cluster)["b"] == set(range(43, 86))
    moves = [("a", range(20), "b"), ("b", range(10, 60), "a"), ("c", [0, 1, 50, 100, 127], "b"), ("c", range(128), "a")]
    for asked, groups, to in moves:
        query.tried(f"{asked}c", partial(moved, cluster, asked, groups, to, strategy=strategy))
        query.epoch("c")
    assert where(cluster) == {"a": set(range(128)), "b": set()}
    second = cluster.daemons["a"].api.status().slots[1].slot
    query.tried("ab", partial(moved, cluster, "b", range(64, 128), "a", second, strategy))
    query.restart()
    query.tried("cb", partial(moved, cluster, "a", range(43, 86), "b"))
    assert where(cluster) == {"a": {*range(43), *range(86, 128)}, "b": set(range(43, 86))}
    placement = cluster.client.deployment("count")["placement"]
    assert placement.get("moving") is None and placement["version"] > len(moves)
    listed = [s.keys for n in "ab" for s in cluster.daemons[n].api.sessions("count").sessions if s.session == f"between {strategy}"]
    assert sum(listed) == len(query.keys), "no key is in two slots"


def test_a_new_version_goes_on_with_groups_that_have_moved(cluster: Nodes) -> None:
    query = Query(cluster, "updated")
    query.epoch("a")
    moved(cluster, "a", [3, 4, 100], "b")
    cluster.push("count", "2", COUNT.format(version=2), **KEYED)
    assert list(cluster.client.update("count", "2"))[-1]["phase"] == "done"
    query.epoch("b", version=2)
    moved(cluster, "a", [3, 4, 100], "a")
    query.epoch("c")


class MoverDies:
    """A move that stops after some steps: its manager is killed first, the steps are done in its place, then something else dies."""

    STEPS = 13  # more than there are, so that the last runs complete the move
    taker = RemoteTaker

    def __init__(self, cluster: Nodes, source: str, to: str) -> None:
        self._cluster, self._source, self._to = cluster, source, to
        self.done: list[str] = []

    def begin_and_die(self, groups: Sequence[int], steps: int, strike: str) -> None:
        """Do this many steps in the middle of an epoch, then strike."""
        c, daemon = self._cluster, self._cluster.daemons[self._source]
        own = [SimpleNamespace(number=n, keys=SlotKeys("count", n)) for n in self._numbers()]
        deployment: Any = SimpleNamespace(name="count", config=DeploymentConfig(), own=own, slot=own[0])
        intent = Intent(tuple(groups), 0, "cpal", node=self._to)
        daemon.kill()
        with (
            contextlib.closing(access.connect(daemon.home, "state")) as state,
            contextlib.closing(access.connect(daemon.home, "queue")) as queue,
        ):
            moving.note(state, own[0].keys, intent)
            across = Across(self._source, daemon.home, c.tls, c.registry.token)
            mover = MoveBetween(deployment, across, c.client, lambda node: self.taker(across.connect(node)), Condition(), lambda: False)
            self.done = list(islice(mover.steps(state, queue, intent, Progress(0, len(groups))), steps))
        getattr(self, strike)()
        c.start(self._source)

    def _numbers(self) -> list[int]:
        return [s.slot for s in self._cluster.daemons[self._source].api.status().slots if s.deployment == "count"]

    def nothing(self) -> None:
        """Kill only the manager that moves the groups."""

    def other_manager(self) -> None:
        """Kill the manager of the node that they move to."""
        self._cluster.daemons[self._to].kill()
        self._cluster.start(self._to)

    def other_node(self) -> None:
        """Kill all of the node that they move to; its disk stays."""
        self._cluster.lose(self._to)
        self._cluster.start(self._to)

    def own_node(self) -> None:
        """Kill all of the node that moves them; its disk stays."""
        self._cluster.lose(self._source)

    def other_owners(self) -> None:
        """Kill the instances of the slots that they move to."""
        for pid in [s.pid for s in self._cluster.daemons[self._to].api.status().slots if s.pid]:
            os.kill(pid, signal.SIGKILL)

    def registry(self) -> None:
        """Stop the registry for a moment."""
        self._cluster.registry.stop()
        self._cluster.start_registry()


STRIKES = ("nothing", "other_manager", "other_node", "own_node", "other_owners", "registry")


@pytest.mark.parametrize("seed", seeds(1))
def test_whoever_dies_between_any_two_steps_of_a_move_between_nodes_it_is_carried_out_once(cluster: Nodes, seed: int) -> None:
    orders, query, seen = random.Random(seed), Query(cluster, f"steps {seed}"), set[str]()
    query.epoch("a", wait_s=60)
    strikes = orders.sample(STRIKES * 3, MoverDies.STEPS)
    for steps, strike in enumerate(strikes):
        mover, groups = MoverDies(cluster, "a", "b"), orders.sample(sorted(where(cluster)["a"] - where(cluster)["b"]), 20)
        query.tried("".join(orders.choices("abc", k=2)), partial(mover.begin_and_die, groups, steps, strike))
        seen.update(mover.done)
        wait_until(lambda: where(cluster)["b"] >= set(groups), 60, f"the groups to be on b after {mover.done}, {strike}")  # noqa: B023
        wait_until(lambda: not cluster.client.deployment("count")["placement"].get("moving"), 60, "the move to be done")
        moved(cluster, "a", groups, "a")
    assert {
        "ready",
        "begun",
        "read ahead",
        "noted",
        "handed over",
        "taken",
        "in force",
        "adopted",
        "forgotten",
        "done",
        "noted done",
    } == seen


class EarlierNode(RemoteTaker):
    """A node of a release that cannot read ahead of a move from another node."""

    def ready(self, name: str, slot: int) -> Ready:
        """Answer as such a node does."""
        return replace(super().ready(name, slot), reads_ahead=False)

    def ahead(self, name: str, slot: int, coming: Coming, carried: Iterator[Carried]) -> None:
        """It has no such call."""
        raise AssertionError("it knows no such call")


def test_a_node_of_an_earlier_release_gets_all_when_the_groups_are_handed_over(cluster: Nodes) -> None:
    query, mover = Query(cluster, "earlier"), MoverDies(cluster, "a", "b")
    query.epoch("a", wait_s=60)
    mover.taker = EarlierNode
    query.tried("ac", partial(mover.begin_and_die, [1, 2, 100], mover.STEPS, "nothing"))
    assert "done" in mover.done and "read ahead" not in mover.done and where(cluster)["b"] >= {1, 2, 100}
    query.epoch("c")
    moved(cluster, "a", [1, 2, 100], "a")
    query.epoch("b")


def test_an_instance_of_an_earlier_release_reads_nothing_ahead_and_gets_all(cluster: Nodes) -> None:
    query, daemon = Query(cluster, "adopted"), cluster.daemons["b"]
    query.epoch("a", wait_s=60)
    daemon.kill()
    handles = {path: json.loads(path.read_text()) for path in (daemon.home / "handles").glob("*.json")}
    for path, record in handles.items():
        if record.get("deployment") == "count":
            assert record["abilities"] == ["moves groups 3", "reads copies"]
            path.write_text(json.dumps({**record, "abilities": ["moves groups 3"]}))
    cluster.start("b")
    query.tried("ac", partial(moved, cluster, "a", [3, 99], "b"))
    query.epoch("c")
    moved(cluster, "a", [3, 99], "a")
    query.epoch("b")


def test_no_move_begins_while_the_registry_has_one_that_the_node_does_not_know(cluster: Nodes) -> None:
    query, groups = Query(cluster, "unknown"), [1, 2]
    query.epoch("a", wait_s=60)
    version = cluster.client.deployment("count")["placement"]["version"]
    cluster.client.move_groups("count", "begin", node="a", version=version, groups=groups, to=1)  # as if a had lost its disk since
    for other in (groups, [3]):
        with pytest.raises(Conflict, match="are being moved on node a: try again when that is done"):
            list(cluster.daemons["a"].api.move_groups("count", other, 0, node="b"))
    cluster.daemons["a"].kill()
    cluster.start("a")
    wait_until(lambda: where(cluster)["b"] >= set(groups), 60, "the manager to go on with the move")
    wait_until(lambda: not cluster.client.deployment("count")["placement"].get("moving"), 60, "the move to be done")
    query.tried("ac", partial(moved, cluster, "a", [3], "b"))
    moved(cluster, "a", [*groups, 3], "a")
    query.epoch("b")


def test_what_cannot_be_moved_between_nodes_is_refused_with_what_to_do(cluster: Nodes) -> None:
    node = cluster.daemons["a"].api

    def refused(error: type[UdoError], match: str, groups: Sequence[int], slot: int, **options: str) -> None:
        with pytest.raises(error, match=match):
            list(node.move_groups("count", groups, slot, **options))

    refused(NotFound, "has its slots on a, b, got node 'c'", [1], 0, node="c")
    refused(NotFound, "has no slot 7 on node b; it has 0", [1], 7, node="b")
    refused(UsageError, "has the key groups 0 to 127", [128], 0, node="b")
    refused(UsageError, "expected a strategy of cpal, direct, got 'teleport'", [1], 0, node="b", strategy="teleport")
    assert not where(cluster)["b"] & {1}


def test_a_host_that_has_a_certificate_and_not_the_registrys_token_moves_nothing(cluster: Nodes) -> None:
    stranger = connect_node(cluster.address("https://b"), cluster.tls, "guessed")
    for call in (lambda: stranger.ready_to_take("count", 0), lambda: list(stranger.move_groups("count", [50], 0, node="a"))):
        with pytest.raises(Unauthorized, match="for node managers that have its registry's token only"):
            call()
    assert 50 in where(cluster)["b"]


def test_a_move_to_a_node_that_is_away_begins_nothing(cluster: Nodes) -> None:
    cluster.lose("b")
    with pytest.raises(UdoError, match="no node manager answers"):
        list(cluster.daemons["a"].api.move_groups("count", [1], 0, node="b"))
    assert not cluster.client.deployment("count")["placement"].get("moving")
    cluster.start("b")
    wait_until(lambda: cluster.offers("a", "count"), 60, "b to be back")
    Query(cluster, "after").epoch("a", wait_s=30)
    moved(cluster, "c", [1], "b")
    moved(cluster, "c", [1], "a")
