"""Requests from one node manager to another: a host with one of the nodes shows state, dead letters and figures of every node."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from tests.conftest import bound, wait_until
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from udo_cli.main import cli
from udo_protocol.errors import NodeAway, UsageError

pytestmark = pytest.mark.long

PICKY = """
from udo_runtime import operator
@operator
def run(batch):
    if 13 in batch.column("a").to_pylist(): raise ValueError("unlucky")
    return {"b": batch.column("a")}
"""
Udo = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a and b, each with a slot of `count` (keyed) and one of `picky`, which keeps dead letters."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", listening="ab") as made:
        made.deploy("count", COUNT.format(version=1), slots=2, **KEYED)
        made.push("picky", "1", PICKY)
        made.client.deploy("picky", "picky", "1", slots=2, over_nodes=True, policy="dead-letter")
        wait_until(lambda: {n["state"] for n in made.client.deployment("picky")["nodes"]} == {"answering"}, 60, "both nodes to answer")
        yield made
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def udo(cluster: Nodes, tmp_path: Path) -> Udo:
    """Run a command on the host of node a, which has no socket of node b; return its JSON, or its output if `code` is given."""
    (tmp_path / "node").symlink_to(cluster.daemons["a"].home)
    env = {"REGISTRY": cluster.registry.url, "TOKEN_FILE": str(cluster.registry.data / "token"), "TLS": str(cluster.tls.ca.parent)}
    env["HOME"] = str(tmp_path)
    there = cluster.daemons["b"].home / "node.sock"

    def run(*words: object, code: int | None = None, registry: str = cluster.registry.url) -> Any:
        words, env["REGISTRY"] = (*words, *(["--json"] if code is None else [])), registry
        os.rename(there, away := there.with_name("away"))
        try:
            done = CliRunner().invoke(cli, [*map(str, words)], env={f"UDO_{name}": value for name, value in env.items()})
        finally:
            os.rename(away, there)
        assert done.exit_code == (code or 0), done.output
        return json.loads(done.stdout) if code is None else done.output

    return run


def letters(udo: Udo) -> list[tuple[str, str]]:
    return [(d["node"], d["id"]) for d in udo("dead", "ls", "picky")]


def test_dead_letters_of_every_node_are_listed_shown_sent_again_and_dropped(cluster: Nodes, udo: Udo) -> None:
    for node in "ab":
        lane = cluster.lane(node, "picky")
        lane.send([1, 13])
        assert lane.values(lane.receive()) == [1]
    (_, first), (_, second) = there = letters(udo)
    assert sorted(node for node, _ in there) == ["a", "b"]
    on_b = next(id_ for node, id_ in there if node == "b")
    assert udo("dead", "show", on_b[:8])["event"] == {"a": 13}
    assert letters(udo) == [*there], "nothing has changed"
    assert [d["id"] for d in udo("dead", "ls", "picky", "--node", "b")] == [on_b]

    assert "2 failed again" in udo("dead", "replay", "picky", "--all", code=6)
    assert [d["replays"] for d in udo("dead", "ls", "picky")] == [1, 1]
    assert udo("dead", "drop", "picky", on_b)["dropped"] == 1
    assert [node for node, _ in letters(udo)] == ["a"]
    cluster.push("picky", "2", PICKY.replace("13 in", "14 in"))
    udo("update", "picky", "2")
    assert udo("dead", "replay", "picky", "--all")[0]["answers"] == [{"b": 13}]
    assert letters(udo) == []
    assert {first, second} >= {on_b}


def test_the_registry_asks_a_node_on_another_host_as_node_managers_do_for_its_console(cluster: Nodes) -> None:
    lane = cluster.lane("b", "picky")
    lane.send([1, 13, 14])  # each version fails on one of these
    lane.receive()
    there, pem = cluster.daemons["b"].home / "node.sock", cluster.tls
    trusted = ssl.create_default_context(cafile=pem.ca)
    trusted.load_cert_chain(pem.certificate, pem.key)
    os.rename(there, away := there.with_name("away"))
    try:
        with httpx.Client(base_url=f"{cluster.registry.url}/console/", verify=trusted, follow_redirects=True, timeout=bound(60)) as browser:
            browser.post("sign-in", data={"token": cluster.registry.token, "name": "ada"})
            for page in ("slots", "dead-letters", "state", "logs", "decisions"):
                answer = browser.get(f"deployments/picky/{page}").text
                assert "Node a was not asked" not in answer and "Node b was not asked" not in answer, page
            slots = browser.get("deployments/picky/slots").text
            assert 'row">a:0' in slots and 'row">b:0' in slots
            found = re.search(r'dead-letters/b/([0-9a-f]+)"', browser.get("deployments/picky/dead-letters").text)
            assert found
            letter = browser.get(f"deployments/picky/dead-letters/b/{found[1]}").text
            assert "ValueError: unlucky" in letter and "op.py" in letter
            form = re.search(r'name="form" value="([^"]+)"', letter)
            assert form
            answer = browser.post("deployments/picky/dead-letters/drop", data={"node": "b", "id": found[1], "form": form[1]})
            assert answer.status_code == 200 and "No dead letters" in answer.text
            gone = browser.get(f"deployments/picky/dead-letters/b/{found[1]}")
            assert gone.status_code == 404
    finally:
        os.rename(away, there)
    assert cluster.client.audit("picky")[0]["action"] == "dead.drop"


def test_sessions_figures_and_logs_of_another_node_are_asked_for_by_name(cluster: Nodes, udo: Udo) -> None:
    Query(cluster, "named").epoch("a")
    rows = [r for r in udo("state", "ls", "count") if r["session"] == "named"]
    assert {r["node"] for r in rows} == {"a", "b"}
    assert sum(r["keys"] for r in udo("state", "ls", "count", "--node", "b") if r["session"] == "named") == next(
        r["keys"] for r in rows if r["node"] == "b"
    )
    assert [{n["node"] for n in d["nodes"]} for d in udo("usage", "count")["deployments"]] == [{"a", "b"}]
    b = cluster.daemons["a"].api.on("b")
    assert b.status().node == "b" and {s.deployment for s in b.stats().slots} >= {"count", "picky"}
    assert "keys on node b" in udo("undeploy", "count", code=4), "what node b holds is known from here"


def test_the_slots_of_all_nodes_are_recorded_or_those_of_the_node_that_is_named(cluster: Nodes, udo: Udo, tmp_path: Path) -> None:
    query, over = Query(cluster, "recorded"), threading.Event()
    query.epoch("a")

    def go_on() -> None:
        while not over.is_set():
            query.epoch("a")

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(go_on)
        try:
            made = udo("record", "count", "--for", "60s", "--frames", "1", "-o", tmp_path / "r", "--node", "b")
            both = udo("record", "count", "--for", "60s", "--frames", "1", "-o", tmp_path / "all")
        finally:
            over.set()
    asking.result()
    assert [(slot["node"], slot["frames"], slot["sessions"] > 0) for slot in made["slots"]] == [("b", 1, True)]
    assert sorted((slot["node"], slot["frames"]) for slot in both["slots"]) == [("a", 1), ("b", 1)]
    alone = udo("record", "count", "--for", "100ms", "-o", tmp_path / "alone", registry="https://127.0.0.1:1")
    assert [slot["node"] for slot in alone["slots"]] == ["a"]
    assert len(alone["nodes_not_asked"]) == 1 and "not asked: other nodes" in alone["nodes_not_asked"][0]
    assert "has no slot 7; it has b:0" in udo("record", "count", "--for", "1s", "-o", tmp_path / "s", "--node", "b", "--slot", "7", code=3)


def test_what_no_node_asks_another_one_for_is_refused_and_one_that_is_away_is_named(cluster: Nodes) -> None:
    a = cluster.daemons["a"].api
    with pytest.raises(UsageError, match="Undeploy is not passed on to node b: run the command on its host"):
        a.on("b").undeploy("picky")
    with pytest.raises(NodeAway, match="does not know the address of node nobody"):
        a.on("nobody").status()
    assert a.on("a").status().node == "a"
