"""An application's deployment over two nodes: a granted replica moves to the other node, and no answer changes; with state, its key groups
move along, whichever process dies meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticity.scaling.journal_rows import rows_of_application
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import add
from tests.support.callers import Callers, answers
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from tests.support.seeds import seeds
from udo_cli.commands.node import node_row
from udo_cli.text.application_events import replayed_application
from udo_protocol import ranges
from udo_protocol.errors import UdoError

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
    """Load through one lane after another, opened at each node in turn; every answer is checked."""

    def once(thread: int, turn: int) -> int:
        came = answers(pair.daemons["ab"[thread]].api, "d", f"{thread}-{turn}", list(range(WINDOW)), tls=pair.tls)
        assert came == [[value + 1] for value in range(WINDOW)]
        return WINDOW

    return Callers(2, once)


def granted(pair: Nodes, load: Callers, number: int, kind: str, node: str, before: int, target: str, expected: tuple[str, ...]) -> None:
    """Propose as that node until the placement is as expected: every other second the real one replaces the proposal by its own."""
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


PHASES = ("begun", "moving", "moved", "gone")
STRIKES = ("source_manager", "target_manager", "source_node", "owners", "registry")


class Keyed:
    """Deployment `count` with slots on a, b and a, and steps granted by its application, during which something dies."""

    def __init__(self, cluster: Nodes) -> None:
        self.cluster, self._number = cluster, 1_000_000
        self.struck: list[tuple[str, str]] = []

    @property
    def placement(self) -> dict[str, Any]:
        return dict(self.cluster.client.deployment("count")["placement"])

    def phase(self) -> str:
        """Return the phase of the step under way; '' if there is none."""
        found = self.placement
        if (step := found.get("step")) is None:
            return ""
        if step["gone"]:
            return "gone"
        if found.get("moving"):
            return "moving"
        return "begun" if step["source"] in found["groups"] and step["to"] not in found["groups"] else "moved"

    def begin(self, kind: str, node: str, target: str = "") -> None:
        """Propose as that node until the step is under way: every other second the real one replaces the proposal by its own."""
        self._number += 1
        before = self.placement["nodes"].count(node)
        plan = {"operator": "count", "kind": kind, "replicas": before, "gain": 3.0, "cost_ms": 1.0, "why": "test", "target": target or None}
        part = {"deployment": "count", "response_ms": 1.0, "number": self._number, "replicas": before, "proposals": [plan]}

        def begun() -> bool:
            with contextlib.suppress(UdoError):
                self.cluster.client.propose(node, {"use": 0.9, "room": 9, "deployments": [part]})
                return bool(self.phase())
            return False

        wait_until(begun, 30, f"{kind} on node {node} to begin")

    def strike(self, phase: str, strike: str, node: str, target: str) -> None:
        """Wait until the step has reached this phase, or a later one, then strike."""

        def there() -> bool:
            now = self.phase()
            return not now or PHASES.index(now) >= PHASES.index(phase)

        wait_until(there, 60, f"the step to be {phase}")
        self.struck.append((self.phase(), strike))
        c = self.cluster
        if strike == "registry":
            c.registry.process.kill()
            c.registry.process.wait(bound(30))
            c.start_registry()
        elif strike == "source_node":
            c.lose(node)
            c.start(node)
        elif strike == "owners":
            for pid in [s.pid for n in "ab" for s in c.daemons[n].api.status().slots if s.pid]:
                os.kill(pid, signal.SIGKILL)
        else:
            struck = node if strike == "source_manager" else target
            c.daemons[struck].kill()
            c.start(struck)

    def over(self) -> None:
        """Wait until the step has ended and the nodes follow the placement."""
        wait_until(lambda: self.phase() == "", 120, f"the step to end, struck by {self.struck}")
        nodes, api = self.placement["nodes"], self.cluster.daemons["b"].api
        there = lambda n: len(self.cluster.daemons[n].api.signals().slots)  # noqa: E731
        wait_until(lambda: all(there(n) == nodes.count(n) for n in "ab"), 60, "the nodes to follow")
        slots = api.places("count").slots
        assert sorted(g for s in slots for g in ranges.parsed(s.groups, 128)) == list(range(128)), "each key group is in one slot"
        assert all(s.groups for s in slots)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcomes of granted steps, oldest first."""
        found = list(rows_of_application("app", self.cluster.client.application_journal("app"), False))
        return [r for r in found if r["result"] in ("done", "failed")]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Keyed]:
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", listening="ab") as made:
        made.deploy("count", COUNT.format(version=1), slots=3, **KEYED)
        never = {"u_max": 1.0, "s_out": 1.0}  # with these no node asks for a step by itself
        made.client.create_application("app", ["count"], **{**WISH, "settings": {**WISH["settings"], **never}})
        yield Keyed(made)
    shutil.rmtree(top, ignore_errors=True)


def test_a_keyed_replica_moves_comes_and_goes_by_grants_while_a_query_runs(keyed: Keyed) -> None:
    query = Query(keyed.cluster, "granted")
    query.epoch("a")
    for kind, node, target, expected in (
        ("migrate", "a", "b", ["a", "b", "b"]),
        ("scale_out", "b", "a", ["a", "b", "b", "a"]),
        ("scale_in", "b", "", ["a", "b", "a"]),
    ):
        query.tried("ab", partial(keyed.begin, kind, node, target))
        query.epoch("b", wait_s=30)
        keyed.over()
        assert keyed.placement["nodes"] == expected
        query.epoch("a", wait_s=30)
    steps = [(r["kind"], r["node"], r["result"], r["detail"]) for r in keyed.outcomes()]
    assert steps == [("migrate", "a", "done", ""), ("scale_out", "b", "done", ""), ("scale_in", "b", "done", "")]
    journal = keyed.cluster.client.application_journal("app")
    assert replayed_application("app", journal)["same"]
    assert any(p["down_ms"] > 0 for r in rows_of_application("app", journal, True) for p in r["chain"]), "what waited is downtime"
    query.restart()
    query.epoch("b", wait_s=30)


def test_a_nodes_only_slot_moves_and_open_attempts_end_there(keyed: Keyed) -> None:
    query = Query(keyed.cluster, "only")
    query.epoch("b", wait_s=30)
    for node, target in (("a", "b"), ("a", "b"), ("b", "a"), ("b", "a")):
        query.tried("ba", partial(keyed.begin, "migrate", node, target))
        query.epoch(target, wait_s=30)  # at the first try: an attempt with a lane in the slot that moves ENDs in it
        keyed.over()
        query.epoch(node, wait_s=30)
    assert sorted(keyed.placement["nodes"]) == ["a", "a", "b"]
    query.restart()
    query.tried("ab", lambda: None)


@pytest.mark.parametrize("seed", seeds(1))
def test_whoever_dies_while_a_granted_step_is_under_way_it_comes_to_its_end_and_each_event_counts_once(keyed: Keyed, seed: int) -> None:
    orders, query = random.Random(seed), Query(keyed.cluster, f"struck {seed}")
    query.epoch("a", wait_s=60)
    for strike in orders.sample(STRIKES, len(STRIKES)):
        now = keyed.placement["nodes"]
        kind = orders.choice(["migrate", "scale_out" if len(now) < 4 else "scale_in"])
        node = orders.choice(sorted(set(now)))
        target = "ab".replace(node, "")
        phase = orders.choice(PHASES)

        def during(kind: str = kind, node: str = node, target: str = target, phase: str = phase, strike: str = strike) -> None:
            keyed.begin(kind, node, target)
            keyed.strike(phase, strike, node, target)

        query.tried("".join(orders.choices("ab", k=2)), during)
        keyed.over()
        query.epoch(orders.choice("ab"), wait_s=60)
    assert {r["result"] for r in keyed.outcomes()} == {"done"}, keyed.struck
    assert replayed_application("app", keyed.cluster.client.application_journal("app"))["same"]


def test_what_a_node_asks_for_a_busy_slot_of_its_own_is_granted_and_done(keyed: Keyed) -> None:
    query, before = Query(keyed.cluster, "busy"), len(keyed.outcomes())
    keyed.cluster.client.change_application("app", settings={"s_out": 0.0001})

    def asked() -> bool:
        query.epoch("a", wait_s=30)
        return len(keyed.outcomes()) > before

    wait_until(asked, 120, "a step that nobody but a node has proposed")
    keyed.cluster.client.change_application("app", settings={"s_out": 1.0})
    keyed.over()
    step = keyed.outcomes()[before]
    assert (step["kind"], step["result"]) == ("scale_out", "done") and step["why"].startswith("replica "), step
    query.tried("ab", lambda: None)


def test_slots_of_several_nodes_are_balanced_by_themselves_while_a_query_runs(keyed: Keyed) -> None:
    cluster, query, before = keyed.cluster, Query(keyed.cluster, "skewed"), len(keyed.outcomes())
    query.epoch("a", wait_s=30)
    slots = cluster.daemons["b"].api.places("count").slots
    first = next(s for s in slots if s.node == "a")
    given = [g for s in slots if s != first for g in ranges.parsed(s.groups, 128)[1:]]
    *_, moved = cluster.daemons["a"].api.move_groups("count", given, first.slot, node="a")
    assert moved.done
    quick = {"balance_use": 0, "balance_confirm": 1, "balance_s": 5, "balance_groups": 64}
    cluster.client.scale("count", elasticity={"settings": quick})

    def fewest() -> int:
        known = keyed.placement["groups"]
        return min(known.count(place) for place in range(len(slots)))

    def balanced() -> bool:
        query.epoch("b", wait_s=30)
        return fewest() > 1 and not keyed.phase()

    assert fewest() == 1
    wait_until(balanced, 180, "each slot to get some of the key groups")
    cluster.client.scale("count", elasticity={"settings": {"balance": ""}})
    keyed.over()
    steps = keyed.outcomes()[before:]
    assert {(r["kind"], r["result"]) for r in steps} == {("balance", "done")} and steps[0]["node"] == "a", steps
    assert steps[0]["why"].startswith("imbalance ") and len(keyed.placement["nodes"]) == len(slots), "no slot comes or goes"
    assert replayed_application("app", cluster.client.application_journal("app"))["same"]
    query.restart()
    query.epoch("a", wait_s=30)
