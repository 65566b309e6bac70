"""A machine's clock jumps by twenty minutes, as after a sleep: leases count elapsed time, so every node stays live and no task is tried
again. Real servers, and a real registry on the same clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node_manager import conftest as of_nodes
from tests.registry import conftest as of_registries
from tests.support.jumping_clock import JumpingClock, jumping_clock
from tests.support.node_query import Query
from tests.support.nodes import Nodes
from tests.support.replicated import NODES, placement, replicated, whole

JUMP_S = 1200
# Longer than the few seconds after which the registry judges each node again.
_JUDGED_S = 4.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JumpingClock]:
    with jumping_clock(tmp_path_factory.mktemp("clock"), of_nodes, of_registries) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(clock: JumpingClock) -> Iterator[Nodes]:
    with replicated() as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("by", [JUMP_S, -JUMP_S])
def test_the_clock_jumps_in_the_middle_of_a_task_and_no_task_is_tried_again_and_no_node_counts_as_away(
    cluster: Nodes, clock: JumpingClock, by: int
) -> None:
    query, before = Query(cluster, f"jumps by {by}"), placement(cluster)
    query.epoch("a", wait_s=60)
    batches, expected = query.drawn()

    def events() -> Iterator[list[int]]:
        yield batches[0]
        clock.set(by)
        watched = time.monotonic() + _JUDGED_S
        while time.monotonic() < watched:
            assert {n["node"] for n in cluster.client.nodes() if n["live"]} == set(NODES)
        yield from batches[1:]

    query.asked(events(), expected)
    query.epoch("b")
    clock.set(0)
    query.epoch("c")
    whole(cluster)
    assert placement(cluster) == before


def test_a_node_is_live_whatever_the_registrys_clock_says(clock: JumpingClock, tmp_path: Path) -> None:
    registry = of_registries.start(tmp_path / "data")
    try:
        client = registry.client()
        client.heartbeat("n")
        for ahead_s in (JUMP_S, 0, -JUMP_S, 86_400):
            clock.set(ahead_s)
            assert [n["live"] for n in client.nodes()] == [True], ahead_s
    finally:
        clock.set(0)
        registry.stop()
