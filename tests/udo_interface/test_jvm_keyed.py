"""Keyed calls that the executor's JVM makes itself. Properties shared with the Python path are tested on both paths, in other files."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.conftest import wait_until
from tests.support.keyed_stream import COUNT, MANIFEST, Stream, key_of
from udo_interface import udo
from udo_interface.lane.place import Stamp
from udo_interface.spark import jvm_path
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long
# Answers each event with a kilobyte.
WIDE = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "k": event["k"], "n": n, "text": str(event["id"]).rjust(1024)}
"""


@pytest.fixture
def batch_rows(spark: SparkSession) -> Iterator[Any]:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    yield lambda rows: spark.conf.set(key, str(rows))
    spark.conf.set(key, before)


def events(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select("id", F.concat(F.lit("k"), F.expr("id * id % 17")).alias("k"))


@pytest.mark.parametrize("slots", [1, 3])
def test_answers_above_what_is_held_in_memory_wait_in_a_file_and_come_in_order(
    spark: SparkSession, platform: Platform, tmp_path: Path, slots: int, batch_rows: Any
) -> None:
    """The micro-batch has 160 MB of answers in two partitions, of which 64 MB each may stay in memory."""
    name = f"held{slots}"
    platform.push(WIDE, name=name, **{**MANIFEST, "output": {**MANIFEST["output"], "text": "string"}})  # type: ignore[dict-item]
    platform.deploy(name, slots=slots)
    rows, seen = 160_000, list[Any]()
    (tmp_path / "in").mkdir()
    events(spark, rows, 1).withColumn("extra", F.expr("-id")).write.parquet(str(tmp_path / "in"), mode="append")

    def each(df: DataFrame, epoch: int) -> None:
        seen.append(df.limit(1).count())
        right = (F.trim("text") == F.col("id").cast("string")) & (F.col("extra") == -F.col("id"))
        seen.extend(df.where(right).select("k", "n").collect())

    batch_rows(1_000)
    source = spark.readStream.schema("id long, k string, extra long").parquet(str(tmp_path / "in"))
    query = udo(name, path="jvm", keep="extra")(source, key="k").writeStream.foreachBatch(each)
    running = query.option("checkpointLocation", str(tmp_path / "ckpt")).start()
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    limited, *answers = seen
    assert limited == 1 and len(answers) == rows
    counts: Counter[str] = Counter()
    for k, n in answers:
        counts[k] += 1
        assert n == counts[k]
    assert counts == Counter(key_of(i) for i in range(rows))


def test_groups_that_move_while_events_are_sent_keep_their_events_in_order(
    spark: SparkSession, platform: Platform, batch_rows: Any
) -> None:
    """A batch job of many small frames, during which the deployment gets more slots and loses some again."""
    platform.push(COUNT, name="moving", **MANIFEST)
    platform.deploy("moving", slots=1)
    batch_rows(200)
    job = udo("moving", path="jvm")(events(spark, 300_000), key="k")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: job.withColumn("at", F.monotonically_increasing_id()).toPandas())
        moved = 0
        for count in (3, 2, 4, 1):
            platform.api.scale("moving", count)
            wait_until(lambda n=count: len(platform.slots("moving")) == n or running.done(), 60, f"{count} slots")  # type: ignore[misc]
            moved += not running.done()
        found = running.result().sort_values("at")
    assert moved, "the job was over before anything moved"
    for k, of_key in found.groupby("k"):
        ids = [i for i in range(300_000) if key_of(i) == k]
        assert sorted(of_key["id"]) == ids
        assert list(of_key["n"]) == list(range(1, len(ids) + 1)), k


def test_a_job_that_a_limit_ends_leaves_no_state_and_no_buffer(spark: SparkSession, platform: Platform, batch_rows: Any) -> None:
    name = platform.operator(COUNT, **MANIFEST)
    jvm: Any = spark.sparkContext._jvm
    root = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$")
    allocator = getattr(root, "MODULE$").rootAllocator()
    before = allocator.getAllocatedMemory()
    batch_rows(100)
    for rows in (60, 60_000):
        assert len(udo(name, path="jvm")(events(spark, rows), key="k").limit(3).collect()) == 3
    assert allocator.getAllocatedMemory() == before
    assert not list(connect_node(platform.node).sessions(name).sessions)


@pytest.mark.short
def test_the_label_of_an_attempt_is_that_of_the_python_path_also_in_a_country_with_digits_of_its_own(spark: SparkSession) -> None:
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    [stamp] = spark._jsparkSession.sharedState().jarClassLoader().loadClass("org.apache.spark.sql.udo.Stamp").getConstructors()
    arguments = jvm.java.util.ArrayList()
    for each in (1, 20, 300, False, False, jvm.scala.Option.empty()):
        arguments.add(each)
    locale, before = jvm.java.util.Locale, jvm.java.util.Locale.getDefault()
    locale.setDefault(locale.forLanguageTag("fa-IR"))
    try:
        assert jvm.java.lang.String.format("%d", arguments.toArray()) != "1", "the digits of this locale are others"
        assert stamp.newInstance(arguments.toArray()).order() == Stamp(1, 20, 300, ()).order()
    finally:
        locale.setDefault(before)


@pytest.mark.short
def test_explain_shows_a_keyed_calls_path(spark: SparkSession, platform: Platform) -> None:
    name, df = platform.operator(COUNT, **MANIFEST), events(spark, 5)
    for call, shown in ((udo(name), f"Udo {name} in the JVM"), (udo(name, path="python"), f"MapInArrow {name}(")):
        assert shown in call(df, key="k")._jdf.queryExecution().toString()


@pytest.mark.short
def test_a_query_goes_on_with_its_state_on_the_other_path(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, platform.operator(COUNT, **MANIFEST))
    for path in ("python", "jvm", "python"):
        stream._options["path"] = path
        stream.add()
        stream.run()
    stream.check()
