"""A node manager that is away: a task waits for one that may come back, and gets a clear error where there never was one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import bound, wait_until
from udo_interface import udo
from udo_interface.discovery import NODE_WAIT_S, node_wait_s
from udo_interface.java import prepare
from udo_interface.lane.opening import Request, ask
from udo_protocol.errors import NodeAway, Unavailable, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CLUSTER_START_S = 60.0


@pytest.mark.both_paths
def test_tasks_wait_for_a_node_manager_that_was_killed_and_comes_back(platform: Platform, spark: SparkSession) -> None:
    name = platform.operator()
    stream = udo(name)(spark.range(0, 100, 1, 2))
    stream.collect()
    platform.manager.kill()
    platform.manager.wait(bound(10))
    got: list[Any] = []
    failed: list[Exception] = []

    def job() -> None:
        try:
            got.extend(stream.collect())
        except Exception as e:
            failed.append(e)

    caller = threading.Thread(target=job)
    caller.start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: bool(tracker.getActiveStageIds()) or bool(failed), 60, "the job to begin")
    platform.start_node()
    caller.join(bound(90))

    assert not failed
    assert sorted(r.id for r in got) == list(range(100))


def test_a_task_that_waited_in_vain_names_the_host_the_socket_and_how_spark_goes_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(NodeAway) as caught:
        ask(str(tmp_path / "node.sock"), Request("fraud"), wait_s=0.2)
    for part in (socket.gethostname(), str(tmp_path / "node.sock"), "0.2 s", "spark.udo.nodeWaitS", "spark.excludeOnFailure.enabled=true"):
        assert part in str(caught.value)


@pytest.mark.short
def test_where_no_node_manager_ever_was_a_task_fails_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "typo" / "node.sock"
    with pytest.raises(Unavailable, match="there is no directory") as caught:
        ask(str(missing), Request("fraud"), wait_s=3600)
    for part in (socket.gethostname(), str(missing), "spark.udo.node", "UDO_NODE"):
        assert part in str(caught.value)


@pytest.mark.short
def test_the_wait_is_the_setting_then_the_variable_then_a_minute() -> None:
    assert node_wait_s("5", {"UDO_NODE_WAIT_S": "7"}) == 5
    assert node_wait_s(None, {"UDO_NODE_WAIT_S": "7"}) == 7
    assert node_wait_s("", {}) == NODE_WAIT_S == 60
    for wrong in ("soon", "-1", "inf"):
        with pytest.raises(UsageError, match=f"UDO_NODE_WAIT_S: expected a number of seconds >= 0, got '{wrong}'"):
            node_wait_s(None, {"UDO_NODE_WAIT_S": wrong})


@pytest.fixture
def cluster(java: None, platform: Platform, tmp_path: Path) -> Iterator[str]:
    """A standalone cluster of two hosts (two addresses of the loopback): only the first has a node manager."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT", "SPARK_"))}
    env |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    prepare(env)
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    started = []
    log = tmp_path / "cluster.log"

    def start(kind: str, *arguments: str, **more: str) -> None:
        with log.open("ab") as out:
            command = [spark_class, f"org.apache.spark.deploy.{kind}", *arguments]
            started.append(subprocess.Popen(command, env=env | more, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"spark://127.0.0.1:{free.getsockname()[1]}"
        start("master.Master", "--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--webui-port", "0")
        (tmp_path / "none").mkdir()
        for host, node in (("127.0.0.1", platform.node), ("127.0.0.2", str(tmp_path / "none" / "node.sock"))):
            options = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / host)]
            start("worker.Worker", *options, url, UDO_NODE=node, SPARK_LOCAL_IP=host)
        wait_until(lambda: log.read_text().count("Successfully registered with master") == 2, CLUSTER_START_S, "both workers to register")
        yield url
    finally:
        for p in started:
            p.terminate()
        for p in started:
            p.wait(bound(30))


def test_spark_goes_round_a_host_without_a_node_manager_where_it_is_told_to(cluster: str, platform: Platform) -> None:
    name = platform.operator()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT", "SPARK_"))}
    job = [sys.executable, "-m", "tests.udo_interface.away_job", cluster, name, platform.url]
    out = subprocess.run(
        job, env=env | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, timeout=bound(180), check=False
    )
    assert out.returncode == 0, out.stderr[-3000:]
    told = json.loads(out.stdout.splitlines()[-1])
    assert told == {"ids": True, "failed_on": ["127.0.0.2"]}
