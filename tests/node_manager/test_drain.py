"""Nodes are drained, and deployments over nodes get more or fewer slots, while a query runs: each event counts once."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node_manager.servers import access
from tests.node_manager.conftest import add
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from udo_cli.main import cli
from udo_protocol import ranges
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import checkpoints

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a, b and c, each with a slot of `count` (keyed) and one of `add`."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", "c", listening="abc") as made:
        made.deploy("count", COUNT.format(version=1), slots=3, **KEYED)
        made.deploy("add", add(1), slots=3)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def udo(c: Nodes, node: str, *words: object, code: int = 0) -> Any:
    """Run a command that asks this node; return its JSON, or its output if another exit code is expected."""
    env = {"REGISTRY": c.registry.url, "TOKEN_FILE": str(c.registry.data / "token"), "NODE": c.address(node), "TLS": str(c.tls.ca.parent)}
    json_too = [] if code else ["--json"]
    done = CliRunner().invoke(cli, [*map(str, words), *json_too], env={f"UDO_{name}": value for name, value in env.items()})
    assert done.exit_code == code, done.output
    return done.output if code else json.loads(done.stdout)


def shares(c: Nodes) -> dict[str, int]:
    """Return node -> number of key groups in its slots; every group must be in exactly one slot."""
    slots = c.daemons["c"].api.places("count").slots
    assert sorted(g for s in slots for g in ranges.parsed(s.groups, 128)) == list(range(128))
    found = Counter[str]()
    for s in slots:
        found[s.node] += len(ranges.parsed(s.groups, 128))
    return dict(found)


def test_a_node_is_drained_while_a_query_runs_and_can_be_used_again(cluster: Nodes) -> None:
    query = Query(cluster, "drained")
    query.epoch("a")
    query.tried("ac", partial(udo, cluster, "c", "node", "drain", "b"))
    assert shares(cluster) == {"a": 64, "c": 64}
    assert [n["drained"] for n in udo(cluster, "a", "node", "ls")] == [False, True, False]
    assert set(cluster.client.deployment("add")["placement"]["nodes"]) == {"a", "c"}
    query.epoch("b", wait_s=30)
    assert cluster.lane("b", "add").ask(1) == 2, "by another node"
    assert udo(cluster, "a", "node", "drain", "b")["moved"] == [], "the same again"

    query.tried("bc", partial(udo, cluster, "c", "node", "drain", "a"))
    assert shares(cluster) == {"c": 128}
    with contextlib.closing(access.connect(cluster.daemons["c"].home, "state")) as state:
        assert query.job.run in checkpoints.runs(state, SlotKeys("count", 0))["drained"], "the order of runs was node a's"
    query.restart()
    query.epoch("a", wait_s=30)
    assert "all slots of deployment 'count' are on node c" in udo(cluster, "c", "node", "drain", "c", code=4)

    for node in "abc":
        udo(cluster, "c", "node", "drain", node, "--undo")
    query.tried("ab", partial(udo, cluster, "c", "scale", "count", 4))
    assert Counter(cluster.client.deployment("count")["placement"]["nodes"]) == {"a": 2, "b": 1, "c": 1}
    assert shares(cluster) == {"a": 64, "b": 32, "c": 32}
    query.epoch("c")

    query.tried("ca", partial(udo, cluster, "b", "scale", "count", 2))
    assert shares(cluster) == {"a": 64, "c": 64}
    query.restart()
    query.tried("bb", lambda: None)


def test_a_plan_moves_key_groups_over_nodes_in_rounds(cluster: Nodes, tmp_path: Path) -> None:
    query, plan = Query(cluster, "planned"), tmp_path / "plan.json"
    query.epoch("a")
    (first, *_), last = cluster.daemons["a"].api.places("count").slots, cluster.daemons["b"].api.places("count").slots[-1]
    name = f"{last.node}:{last.slot}"
    groups = ranges.parsed(first.groups, 128)[:6]
    plan.write_text(json.dumps({ranges.shown(groups): name}))
    done: list[Any] = []
    query.tried("bc", lambda: done.append(udo(cluster, "b", "rebalance", "count", "--plan", plan, "--moves-under-way", 4)))
    assert [(m["groups"], m["to"]) for m in done[0]["moves"]] == [(groups[:4], name), (groups[4:], name)]
    assert set(groups) <= set(ranges.parsed(cluster.daemons["a"].api.places("count").slots[-1].groups, 128))
    query.epoch("a")
    plan.write_text(json.dumps({"0": "b:77"}))
    assert "got b:77" in udo(cluster, "b", "rebalance", "count", "--plan", plan, code=3)
