"""Spark over two hosts, each with a node manager of its own: a keyed stream answers correctly or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.conftest import bound, require, wait_until
from tests.registry.conftest import image, start
from tests.support.certificates import signed
from tests.support.netns import Missing, Network, direct, network
from tests.udo_interface.two_node_query import EPOCHS, JVM, KEYS
from udo_interface.java import prepare
from udo_protocol.node.api import connect_node

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"k": event["k"], "n": n}
"""
MANIFEST: dict[str, Any] = {"entry": "op:Count", "key": ["k"], "input": {"k": "string"}, "output": {"k": "string", "n": "int64"}}
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 90


@contextmanager
def hosts(*names: str) -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(network(*names))
        except Missing as e:
            require("network namespaces", str(e))
        yield made


@contextmanager
def cluster(net: Network, top: Path) -> Iterator[tuple[str, str]]:
    """Run a registry and a Spark master on the machine, a node manager and a Spark worker on each host; yield the URLs of the first two."""
    registry = start(top / "registry", "--listen", f"{net.address}:0", tls=signed(top / "certs", "registry", net.address))
    env = direct({k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))})
    env |= {"PYTHONPATH": str(ROOT), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JVM}
    prepare(env)
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    processes = []
    try:
        with (top / "log").open("wb") as log:
            out: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = [spark_class, "org.apache.spark.deploy.master.Master", "--host", net.address, "--port", "0", "--webui-port", "0"]
            processes.append(subprocess.Popen(list(map(str, command)), env=env, **out))
            client = registry.client()
            image("count", "1", COUNT, **MANIFEST).push(client, top)
            client.deploy("count", "count", "1")
            for name, host in net.hosts.items():
                arguments = ["--home", top / name, "--node", name, "--registry", registry.url, "--token-file", registry.data / "token"]
                arguments += ["--tls", top / "certs" / "registry"]
                processes.append(host.popen([sys.executable, "-m", "node_manager", *arguments], env=env, **out))
            wait_until(lambda: " at spark://" in (top / "log").read_text(), START_TIMEOUT_S, "the Spark master to start")
            found = re.search(r" at (spark://\S+)", (top / "log").read_text())
            assert found is not None
            for name, host in net.hosts.items():
                command = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host.address, "--cores", "1", "--memory", "1g"]
                command += ["--webui-port", "0", "--work-dir", str(top / f"work-{name}"), found[1]]
                own = {**env, "SPARK_LOCAL_IP": host.address, "UDO_NODE": str(top / name / "node.sock")}
                processes.append(host.popen(command, env=own, **out))

        def answering() -> set[str]:
            return {n["node"] for n in client.deployment("count")["nodes"] if n["state"] == "answering"}

        wait_until(lambda: answering() == set(net.hosts), START_TIMEOUT_S, "both nodes to answer")
        yield registry.url, found[1]
    finally:
        for p in reversed(processes):
            p.terminate()
        for p in processes:
            p.wait(bound(30))
        for name in net.hosts:
            connect_node(top / name / "node.sock").close()
        registry.stop()


@pytest.mark.long
def test_a_keyed_stream_over_two_nodes_is_refused_without_a_store_and_right_with_one(java: None) -> None:
    """Without the refusal, Spark would plan a partition of a later epoch on the other node, and its keys would count from 1 again."""
    with tempfile.TemporaryDirectory(prefix="udo-") as directory, hosts("a", "b") as net:
        top = Path(directory)
        with cluster(net, top) as (registry, master):
            (top / "query").mkdir()
            job = [sys.executable, "-m", "tests.udo_interface.two_node_query", "count", registry, master, net.address, str(top / "query")]
            env = direct({k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))})
            near = {"SPARK_LOCAL_IP": net.address, "UDO_TLS": str(top / "certs" / "registry")}
            done = subprocess.run(job, cwd=ROOT, env={**env, **near}, capture_output=True, text=True, timeout=bound(600), check=False)
            assert done.returncode == 0, done.stderr[-3000:] + (top / "log").read_text()[-3000:]
        told = json.loads(done.stdout.splitlines()[-1])

    def wrong(query: dict[str, Any]) -> list[Any]:
        return [(epoch, k, n) for epoch, rows in query["counts"].items() for k, n in rows if n != int(epoch) + 1]

    without, stored = told["without"], told["with"]
    assert wrong(without) == []
    assert re.search(r"has its state on node (a|b), and this task was sent to node (a|b)", without["error"]), without["error"]
    for part in (without["session"], "store=", "executors on one node"):
        assert part in without["error"]
    assert stored["error"] == ""
    assert wrong(stored) == []
    assert [len(rows) for rows in stored["counts"].values()] == [KEYS] * EPOCHS
    assert len(stored["nodes"]) == 2
