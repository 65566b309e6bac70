"""Slots on other nodes, called from Spark over TLS, on either path: counts are as if there were one slot and each epoch ran once."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import wait_until
from tests.support.keyed_stream import COUNT, MANIFEST, Stream
from tests.support.nodes import Nodes, nodes
from udo_interface import udo
from udo_interface.spark import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long
FORWARD = """
from udo_runtime import operator
@operator
def run(batch):
    return {"id": batch.column("id")}
"""
EPOCHS = 6
WIDE = "x" * 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a and b with the slots of `wide` (keyed) and `forward`; and c, which has none, and which the session's tasks ask."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for socket paths
    with nodes(top, "a", "b", "c", listening="ab") as made:
        made.deploy("wide", COUNT, slots=3, **MANIFEST)
        made.deploy("forward", FORWARD, slots=2, input={"id": "int64", "text": "string"}, output={"id": "int64"})
        yield made
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(autouse=True)
def on_node_c(spark: SparkSession, cluster: Nodes) -> Iterator[None]:
    own = {"spark.udo.node": cluster.address("c"), "spark.udo.registry": cluster.registry.url, "spark.udo.tls": str(cluster.tls.ca.parent)}
    former = {name: spark.conf.get(name, None) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    yield
    for name, was in former.items():
        if was is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, was)


@pytest.mark.both_paths
def test_frames_of_every_size_reach_slots_of_other_hosts_and_come_back(spark: SparkSession, call_path: str) -> None:
    df = spark.range(0, 40_000, 1, 4).selectExpr("id", f"if(id % 3 = 0, '{WIDE}', null) as text")
    called = udo("forward")(df)
    assert ("in the JVM" in called._jdf.queryExecution().toString()) == (call_path == settings.JVM)
    assert sorted(r.id for r in called.collect()) == list(range(40_000))
    assert [r.id for r in udo("forward")(spark.range(1).selectExpr("id", "'' as text")).collect()] == [0]


@pytest.mark.both_paths
def test_a_query_counts_once_while_its_key_groups_move_between_nodes(spark: SparkSession, cluster: Nodes, tmp_path: Path) -> None:
    """All groups move each time, so that attempts under way open lanes in slots that had no key groups when they began."""
    stream, over = Stream(spark, tmp_path, "wide"), threading.Event()

    def move() -> int:
        for moves in itertools.count(1):
            *_, last = cluster.daemons["c"].api.move_groups("wide", range(128), 0, node="ba"[moves % 2])
            assert last.done, last
            if over.wait(0.05):
                return moves
        raise AssertionError

    for _ in range(EPOCHS):
        stream.add(1000)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(move)
        try:
            stream.run()
        finally:
            over.set()
    stream.check()
    assert moved.result() > EPOCHS
    wait_until(lambda: all(cluster.events(n, "wide") for n in "ab"), 20, "events on both nodes")


def test_a_query_with_a_store_goes_on_when_either_node_has_lost_its_disk(spark: SparkSession, cluster: Nodes, tmp_path: Path) -> None:
    """Between two batches, and after the query was restarted; also the node that orders its runs."""
    stream = Stream(spark, tmp_path, "wide", store=str(tmp_path / "store"))
    for lost in ("", "b", "a", "b"):
        if lost:
            cluster.lose(lost, disk=True)
            cluster.start(lost)
            wait_until(lambda: cluster.offers("c", "wide"), 60, "all slots to be there again")
        for _ in range(2):
            stream.add(1000)
        stream.run()
    stream.check()
