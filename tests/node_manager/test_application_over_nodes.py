"""An application's deployment without state over two nodes: a replica that was granted moves to the other node, and no answer changes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.node_manager.conftest import add
from tests.support.callers import Callers, answers
from tests.support.nodes import Nodes, nodes
from udo_cli.commands.node import node_row

pytestmark = pytest.mark.long

WISH: dict[str, Any] = {"mode": "auto", "response_ms": 1000, "interval_s": 0.3, "settings": {"token_s": 0.1, "idle_token_s": 0.1}}
WINDOW = 8


@pytest.fixture
def pair() -> Iterator[Nodes]:
    """Nodes a and b, with two slots of `d` on a and one on b."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", listening="ab") as made:
        made.deploy("d", add(1), slots=3)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def callers(pair: Nodes) -> Callers:
    """Lanes one after the other, asked for at each node in turn; every answer is checked."""

    def once(thread: int, turn: int) -> int:
        came = answers(pair.daemons["ab"[thread]].api, "d", f"{thread}-{turn}", list(range(WINDOW)), tls=pair.tls)
        assert came == [[value + 1] for value in range(WINDOW)]
        return WINDOW

    return Callers(2, once)


def granted(pair: Nodes, load: Callers, number: int, kind: str, node: str, before: int, target: str, expected: tuple[str, ...]) -> None:
    """Propose as that node until the placement is as expected. The real one tells something else every other second."""
    plan = {"operator": "d", "kind": kind, "replicas": before, "gain": 3.0, "cost_ms": 1.0, "why": "test", "target": target}
    part = {"deployment": "d", "response_ms": 1.0, "number": number, "replicas": before, "proposals": [plan]}
    placed = lambda: tuple(pair.client.deployment("d")["placement"]["nodes"])  # noqa: E731

    def told() -> bool:
        if placed() != expected:
            pair.client.propose(node, {"use": 0.9, "room": 9, "deployments": [part]})
        return placed() == expected

    load.wait(told, 30, f"{kind} on node {node}")
    there = lambda n: sum(s.deployment == "d" for s in pair.daemons[n].api.signals().slots)  # noqa: E731
    load.wait(lambda: all(there(n) == expected.count(n) for n in "ab"), 60, "the nodes to follow")
    load.more(4 * WINDOW, "answers afterwards")


def test_a_replica_moves_to_the_other_node_comes_and_goes_while_lanes_are_answered(pair: Nodes) -> None:
    assert pair.client.deployment("d")["placement"]["nodes"] == ["a", "b", "a"]
    pair.client.create_application("app", ["d"], **WISH)
    with callers(pair) as load:
        load.more(WINDOW, "first answers")
        granted(pair, load, 1_000_000, "migrate", "a", 2, "b", ("a", "b", "b"))
        granted(pair, load, 1_000_001, "scale_out", "b", 2, "a", ("a", "b", "b", "a"))
        granted(pair, load, 1_000_002, "scale_in", "b", 2, "", ("a", "b", "a"))
    assert load.failures == []

    def measured() -> dict[str, dict[str, float]]:
        return {n["node"]: n["delays_ms"] for n in pair.client.nodes()}

    ways = {"a": ["b"], "b": ["a"]}
    wait_until(
        lambda: {node: list(delays) for node, delays in measured().items()} == ways, 60, "each to have measured the way to the other one"
    )
    far = measured()
    assert all(0 < ms < 1000 for delays in far.values() for ms in delays.values())
    assert [node_row(n)[-1].split()[0] for n in pair.client.nodes()] == ["b", "a"]
    said = [row for row in pair.client.audit("d") if row["who"] == "application app"]
    assert [row["detail"].partition(":")[0] for row in reversed(said)] == ["migrate on node a", "scale_out on node b", "scale_in on node b"]
