"""A keyed deployment over nodes whose queries have a store: a node that loses its disk is given its part of the state again."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Condition
from types import SimpleNamespace
from typing import Any

import pytest

from node_manager.config import DeploymentConfig
from node_manager.deployments.across import Across
from node_manager.deployments.between import MoveBetween
from node_manager.deployments.move_steps import Progress
from node_manager.deployments.taking import RemoteTaker
from node_manager.servers import access
from tests.conftest import wait_until
from tests.support.lanes import opened
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from tests.support.seeds import seeds
from udo_protocol import ranges
from udo_protocol.errors import StateElsewhere, UdoError
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import carrying, moving
from udo_protocol.state.carrying import Carried
from udo_protocol.state.moving import Intent

pytestmark = pytest.mark.long
GROUPS = range(20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a and b with the slots of `count`, of which a has two, also the one that orders the runs; and c, which has none."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", "c", listening="ab") as made:
        made.deploy("count", COUNT.format(version=1), slots=3, **KEYED)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def lose(c: Nodes, node: str) -> None:
    """Kill all of a node, remove its disk, and start it again."""
    c.lose(node, disk=True)
    c.start(node)


def where(c: Nodes) -> dict[str, set[int]]:
    return {n: {g for shown in c.groups(n, "count") for g in ranges.parsed(shown, 128)} for n in "ab"}


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_query_with_a_store_goes_on_when_a_node_has_lost_its_disk(cluster: Nodes, tmp_path: Path, lost: str) -> None:
    query = Query(cluster, f"lost {lost}", tmp_path / "store")
    query.epoch("c", wait_s=60)
    query.run_again()  # a second run of the same plan: the node that knew the order of the two is lost
    query.epoch("a")
    lose(cluster, lost)
    query.tried("cb", lambda: None)
    query.run_again()
    query.tried("ba", lambda: None)
    query.tried("cc", partial(lose, cluster, lost))
    query.tried("bc", lambda: None)
    query.restart()
    query.epoch("a")
    query.without_store()
    with pytest.raises(StateElsewhere, match="call the operator with the same store= as before"):
        query.epoch("b")


def test_with_replicas_too_a_query_with_a_store_goes_on_and_when_all_are_lost_once_it_is_deployed_anew(tmp_path: Path) -> None:
    top = Path(tempfile.mkdtemp(prefix="udo-"))
    with nodes(top, "a", "b", "c", listening="abc") as made:
        deployed = partial(made.deploy, "count", COUNT.format(version=1), slots=3, replicas=1, **KEYED)
        deployed()

        def replicated() -> None:
            wait_until(lambda: all(made.client.deployment("count")["placement"]["replication"]["counted"]), 60, "all replicas")

        replicated()
        query = Query(made, "replicated", tmp_path / "store")
        query.epoch("a", wait_s=60)
        made.lose("a", disk=True)
        query.tried("bc", lambda: None)
        query.run_again()
        query.tried("cb", lambda: None)
        made.start("a")
        replicated()
        for node in "abc":
            made.lose(node, disk=True)
        for node in "abc":
            made.start(node)

        def refused() -> bool:
            with pytest.raises(UdoError) as e:
                opened(made.daemons["b"].api, "count", "looks", session="looks")
            return "has lost the disk with its state" in str(e.value) and "a query with store= goes on from its store" in str(e.value)

        wait_until(refused, 60, "the loss to be told")
        made.client.undeploy("count", drop_state=True)
        made.client.deploy("count", "count", "1", slots=3, over_nodes=True, replicas=1)
        wait_until(lambda: made.offers("a", "count"), 60, "the slots to be there")
        query.restart()
        query.tried("ca", lambda: None)
    shutil.rmtree(top, ignore_errors=True)


class Mover:
    """Moves GROUPS from a to b step by step, in place of a's manager."""

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster
        self.version, self.carried = 0, list[Carried]()

    def step(self, steps: int) -> list[str]:
        """Kill a's manager, and do this many steps; return them. The state handed over is copied."""
        c, daemon = self._cluster, self._cluster.daemons["a"]
        numbers = [s.slot for s in daemon.api.status().slots if s.deployment == "count"]
        own = [SimpleNamespace(number=n, keys=SlotKeys("count", n)) for n in numbers]
        deployment: Any = SimpleNamespace(name="count", config=DeploymentConfig(), own=own, slot=own[0])
        daemon.kill()
        with (
            contextlib.closing(access.connect(daemon.home, "state")) as state,
            contextlib.closing(access.connect(daemon.home, "queue")) as queue,
        ):
            intent = Intent(tuple(GROUPS), 0, "cpal", node="b")
            moving.note(state, own[0].keys, intent)
            mover = MoveBetween(deployment, self._across(), c.client, self._taker, Condition(), lambda: False)
            done = []
            for step in islice(mover.steps(state, queue, intent, Progress(0, len(GROUPS))), steps):
                done.append(step)
                if step == "handed over":
                    pending = c.client.deployment("count")["placement"]["moving"]
                    self.version = int(pending["version"])
                    self.carried = list(carrying.handed_over(state, own[0].keys, self.version))
        return done

    def again(self) -> None:
        """Bring the handed-over state to b, and let b adopt it, once more."""
        taker = self._taker("b")
        taker.take("count", 0, self.version, iter(self.carried))
        taker.adopt("count", 0, self.version, self._cluster.client.deployment("count")["placement"])

    def _across(self) -> Across:
        c = self._cluster
        return Across("a", c.daemons["a"].home, c.tls, c.registry.token)

    def _taker(self, node: str) -> RemoteTaker:
        return RemoteTaker(self._across().connect(node))


def settled(c: Nodes, back: bool = True) -> None:
    """Wait until no move is under way, then move GROUPS back to a."""
    wait_until(lambda: not c.client.deployment("count")["placement"].get("moving"), 60, "the move to be done")
    wait_until(lambda: all(c.offers(n, "count") for n in "abc"), 60, "all nodes to serve")
    if back:
        *_, last = c.daemons["c"].api.move_groups("count", GROUPS, 0, node="a", wait_s=60)
        assert last.done and where(c)["a"] >= set(GROUPS)


@pytest.mark.parametrize("seed", seeds(1))
def test_whichever_disk_is_lost_between_any_two_steps_of_a_move_no_event_is_lost_and_the_next_move_is_possible(
    cluster: Nodes, tmp_path: Path, seed: int
) -> None:
    orders, query, seen = random.Random(seed), Query(cluster, f"steps {seed}", tmp_path / "store"), set[str]()
    query.epoch("a", wait_s=60)
    for steps, lost in enumerate(orders.sample(["a", "b"] * 5, 10)):  # not behind "done": a's manager might begin again after the move back
        mover = Mover(cluster)

        def strike(lost: str = lost, steps: int = steps, mover: Mover = mover) -> None:
            seen.update(mover.step(steps))
            lose(cluster, lost)
            if lost != "a":
                cluster.start("a")

        query.tried("".join(orders.choices("abc", k=2)), strike)
        settled(cluster)
        query.tried("".join(orders.choices("abc", k=2)), lambda: None)
    assert {"ready", "begun", "read ahead", "noted", "handed over", "taken", "in force", "adopted", "forgotten"} <= seen


def test_groups_that_are_brought_once_more_to_a_node_without_its_former_disk_replace_nothing_newer(cluster: Nodes, tmp_path: Path) -> None:
    query, mover = Query(cluster, "late", tmp_path / "store"), Mover(cluster)
    query.epoch("a", wait_s=60)
    done = mover.step(8)
    assert done[-1] == "adopted", f"and then the manager goes on; {done}"
    cluster.start("a")
    settled(cluster, back=False)
    query.tried("ca", lambda: None)
    lose(cluster, "b")
    query.tried("ca", lambda: None)
    query.tried("ca", mover.again)
    query.tried("bc", lambda: None)
    settled(cluster)


def test_a_move_that_its_node_forgot_with_its_disk_ends_before_the_next_one_begins(cluster: Nodes, tmp_path: Path) -> None:
    query, mover, others = Query(cluster, "forgotten", tmp_path / "store"), Mover(cluster), range(100, 106)
    query.epoch("a", wait_s=60)

    def moved() -> bool:
        with contextlib.suppress(UdoError):
            *_, last = cluster.daemons["a"].api.move_groups("count", others, 0, node="a", wait_s=20)
            return bool(last.done)
        return False

    def strike() -> None:
        assert mover.step(3)[-1] == "read ahead"
        lose(cluster, "a")
        wait_until(moved, 90, "the next move to be done")

    query.tried("bc", strike)
    wait_until(lambda: where(cluster)["b"] >= set(GROUPS), 60, "the forgotten move to be done")
    assert set(others) <= set(ranges.parsed(cluster.groups("a", "count")[0], 128))
    query.tried("ca", lambda: None)
    settled(cluster)


@pytest.mark.parametrize("steps", [7, 9])
def test_a_move_comes_to_its_end_though_both_nodes_have_lost_their_disks(cluster: Nodes, tmp_path: Path, steps: int) -> None:
    query, mover = Query(cluster, f"both {steps}", tmp_path / "store"), Mover(cluster)
    query.epoch("a", wait_s=60)

    def strike() -> None:
        assert mover.step(steps)[-1] == {7: "in force", 9: "forgotten"}[steps]
        cluster.lose("b", disk=True)
        lose(cluster, "a")
        cluster.start("b")

    query.tried("cc", strike)
    settled(cluster)
    query.tried("ab", lambda: None)
