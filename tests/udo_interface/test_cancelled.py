"""Jobs that are cancelled and queries that are stopped midway: nothing is left behind, and the next answers are right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import InheritableThread

from tests.conftest import bound, wait_until
from tests.support.keyed_stream import MANIFEST, Stream
from udo_interface import udo
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

# Is held at an event until a file exists; by then nobody can use the answers that it has begun.
HELD = """
import pathlib, time
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        if event["id"] == {at}:
            print("holding", flush=True)
            while not pathlib.Path({go!r}).exists():
                time.sleep(0.05)
        {counted}
"""
STATELESS = """yield {"id": event["id"]}"""
KEYED = """n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "k": event["k"], "n": n}"""


def cancelled(spark: SparkSession, job: Callable[[], Any], under_way: Callable[[], bool], *, interrupt: bool = True) -> None:
    """Run the job in a group of its own, cancel the group once it is under way, and check that this ended the job."""
    ended: list[str] = []

    def run() -> None:
        spark.sparkContext.setJobGroup("cancelled", "is cancelled", interruptOnCancel=interrupt)
        try:
            job()
            ended.append("it ended by itself")
        except Exception as e:  # Spark's error or that of the bridge to it, depending on the moment
            ended.append(str(e))

    thread: Thread = InheritableThread(target=run)
    thread.start()
    wait_until(under_way, 60, "the job to be under way")
    spark.sparkContext.cancelJobGroup("cancelled")
    thread.join(bound(60))
    assert not thread.is_alive() and "cancel" in ended[0].lower(), ended


def rows(df: DataFrame) -> list[Any]:
    return sorted(r.id for r in df.collect())


@pytest.mark.both_paths
def test_a_job_that_is_cancelled_ends_at_once_and_the_next_one_is_answered_whole(spark: SparkSession, platform: Platform) -> None:
    go = platform.sign()
    name = platform.operator(HELD.format(at=50, go=str(go), counted=STATELESS), entry="op:Count")
    cancelled(spark, lambda: udo(name)(spark.range(0, 100, 1, 2)).collect(), lambda: platform.said(name, "holding"))
    go.touch()
    assert rows(udo(name)(spark.range(0, 300, 1, 2))) == list(range(300))


@pytest.mark.both_paths
def test_a_keyed_job_that_is_cancelled_leaves_no_state_and_the_next_one_counts_from_one(spark: SparkSession, platform: Platform) -> None:
    go = platform.sign()
    name = platform.operator(HELD.format(at=50, go=str(go), counted=KEYED), **MANIFEST)
    events = spark.range(0, 100, 1, 2).selectExpr("id", "'k' AS k")
    cancelled(spark, lambda: udo(name)(events, key="k").collect(), lambda: platform.said(name, "holding"))
    go.touch()
    assert sorted(r.n for r in udo(name)(events, key="k").collect()) == list(range(1, 101))
    wait_until(lambda: not list(connect_node(platform.node).sessions(name).sessions), 60, "no session of the jobs to be left")


@pytest.mark.long
def test_a_keyed_job_that_is_cancelled_closes_its_lanes_in_all_slots(spark: SparkSession, platform: Platform) -> None:
    go, name = platform.sign(), "cancelled"
    platform.push(HELD.format(at=50, go=str(go), counted=KEYED), name=name, **MANIFEST)
    platform.deploy(name, slots=3)
    events = spark.range(0, 100, 1, 2).selectExpr("id", "'k' AS k")
    with closing(platform.queue()) as queue:

        def lanes() -> int:
            """Return the number of slots that have lanes."""
            return len(queue.call("KEYS", f"udo:{name}:*:lanes"))

        job = udo(name, path="jvm")(events, key="k")
        cancelled(spark, job.collect, lambda: platform.said(name, "holding") and lanes() == 3)
        wait_until(lambda: lanes() == 0, 60, "all lanes to be closed")
    go.touch()


@pytest.mark.long
def test_tasks_that_are_cancelled_without_an_interrupt_do_not_wait_any_longer_for_a_node_manager(
    spark: SparkSession, platform: Platform, tmp_path: Path
) -> None:
    jvm: Any = spark.sparkContext._jvm

    def waiting() -> bool:
        """Return whether a task asks the node manager for a lane."""
        threads = jvm.java.lang.Thread.getAllStackTraces()
        tasks = [thread for thread in threads if thread.getName().startswith("Executor task launch worker")]
        return any("NodeDoor" in frame.toString() for task in tasks for frame in threads[task])

    spark.conf.set("spark.udo.node", str(tmp_path / "node.sock"))
    spark.conf.set("spark.udo.nodeWaitS", "600")
    try:
        df = udo(platform.operator(), path="jvm")(spark.range(0, 2, 1, 2))
    finally:
        spark.conf.unset("spark.udo.nodeWaitS")
        spark.conf.set("spark.udo.node", platform.node)
    cancelled(spark, df.collect, waiting, interrupt=False)
    wait_until(lambda: not waiting(), 60, "the tasks to end")


@pytest.mark.long
@pytest.mark.both_paths
def test_a_keyed_query_that_is_stopped_in_an_epoch_counts_each_event_once_when_it_goes_on(
    spark: SparkSession, platform: Platform, tmp_path: Path
) -> None:
    go = platform.sign()
    stream = Stream(spark, tmp_path, platform.operator(HELD.format(at=1010, go=str(go), counted=KEYED), **MANIFEST))
    stream.add()
    stream.add()
    query = stream.start()
    try:
        wait_until(lambda: platform.said(stream._operator, "holding"), 60, "the operator to hold an event of the second epoch")
    finally:
        query.stop()
    assert not query.isActive and list(stream.rows) == [0]
    go.touch()
    stream.add()
    stream.run()
    stream.check()
