"""A keyed call counts correctly in every plan that Spark makes of it, whatever comes before and after it, and however it is evaluated."""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tests.conftest import bound
from tests.support.keyed_stream import COUNT, MANIFEST, Stream, key_of, refuses_asynchronous_progress
from tests.support.plans import BEFORE, BEHIND, IN_THREADS, INSIDE, Plan, Planned, configured
from tests.support.seeds import seeds
from tests.support.selection import long
from tests.support.timed_stream import MANIFEST as TIMED_MANIFEST
from tests.support.timed_stream import TIMED
from udo_interface import udo
from udo_interface.spark import jvm_path
from udo_protocol.errors import Unavailable
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

ONCE_WRONG = ("in a thread", "union with a table on its left")
EMPTY = ((40, 0, 40), (0, 40))  # the second and the fourth epoch have no events


@pytest.fixture(scope="module")
def count(platform: Platform) -> str:
    return platform.operator(COUNT, **MANIFEST)


def right(spark: SparkSession, count: str, tmp_path: Path, plan: Plan) -> None:
    planned = Planned(spark, tmp_path, count, plan)
    planned.run()
    planned.check()


# The gate runs the cases that once came out wrong or stuck, and some others drawn by its seeds.
@pytest.mark.parametrize("adaptive", [True, long(False)])
@pytest.mark.parametrize("behind", ["coalesce", *(long(name) for name in BEHIND if name != "coalesce")])
def test_behind_the_call_there_may_be_anything(spark: SparkSession, count: str, tmp_path: Path, behind: str, adaptive: bool) -> None:
    right(spark, count, tmp_path, Plan(behind=(behind,), adaptive=adaptive))


@pytest.mark.parametrize("adaptive", [long(True), False])
@pytest.mark.parametrize("before", ["columns", *(long(name) for name in BEFORE if name != "columns")])
def test_before_the_call_there_may_be_anything(spark: SparkSession, count: str, tmp_path: Path, before: str, adaptive: bool) -> None:
    right(spark, count, tmp_path, Plan(before=(before,), adaptive=adaptive))


@pytest.mark.parametrize("called", ["stream", long("inside")])
@pytest.mark.parametrize("inside", [*ONCE_WRONG, *(long(name) for name in INSIDE if name not in ONCE_WRONG)])
def test_in_foreach_batch_it_is_evaluated_in_any_way(spark: SparkSession, count: str, tmp_path: Path, inside: str, called: str) -> None:
    right(spark, count, tmp_path, Plan(inside=inside, called=called))


@pytest.mark.parametrize("left", [long(False), True])
def test_a_call_that_is_made_in_another_thread_is_one_of_its_query(spark: SparkSession, count: str, tmp_path: Path, left: bool) -> None:
    """Also for a union that begins with a table of the application's own session."""
    stream = Stream(spark, tmp_path, count)
    nothing = spark.range(0).selectExpr("id", "'' k")

    def each(df: DataFrame, epoch: int) -> None:
        def evaluate() -> list[Any]:
            return udo(count)(nothing.union(df) if left else df, key="k").collect()

        stream.rows[epoch] = [tuple(r) for r in call_in_thread(evaluate)]  # type: ignore[misc]

    for _ in range(2):
        stream.add()
        query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    stream.check()


@pytest.mark.long
def test_a_call_in_foreach_batch_may_be_united_with_a_table_of_the_applications_own_session(
    spark: SparkSession, count: str, tmp_path: Path
) -> None:
    """The plan is made in that session, in which no call has been made so far."""
    session = spark.newSession()
    stream = Stream(session, tmp_path, count)

    def each(df: DataFrame, epoch: int) -> None:
        table = session.range(1).selectExpr("-1L id", "'' k", "0L n")
        stream.rows[epoch] = [tuple(r) for r in table.union(udo(count)(df, key="k")).collect() if r.k]  # type: ignore[misc]

    for _ in range(2):
        stream.add()
    query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    stream.check()


@pytest.mark.parametrize("partitions", [(1, 8), long((8, 2)), long((200, 1))])
def test_the_partitions_may_be_any_number_and_another_one_after_a_restart(
    spark: SparkSession, count: str, tmp_path: Path, partitions: tuple[int, int]
) -> None:
    right(spark, count, tmp_path, Plan(partitions=partitions, behind=("coalesce",), epochs=EMPTY, rows_per_batch=3))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(1, 200))
def test_any_plan_counts_as_a_plain_process_does(spark: SparkSession, count: str, tmp_path: Path, seed: int) -> None:
    right(spark, count, tmp_path, Plan.drawn(seed))


Evaluate = Callable[["DataFrame"], list[Any]]


def counted(stream: Stream, evaluated: dict[int, Evaluate], runs: int = 1, **options: Any) -> None:
    """Evaluate only these epochs, each as given; the answers in each must follow those in the last one that was evaluated."""

    def each(df: DataFrame, epoch: int) -> None:
        if epoch in evaluated:
            stream.rows[epoch] = [tuple(r) for r in evaluated[epoch](df)]

    for _ in range(max(evaluated) + 1):
        stream.add()
    stream.run(each=each, **options)
    counts: Counter[str] = Counter()
    for epoch, rows in sorted(stream.rows.items()):
        for i, k, n in sorted(rows):
            counts[k] += 1
            assert (k, n) == (key_of(i), counts[k]), f"epoch {epoch}"


def collected(df: DataFrame) -> list[Any]:
    return df.collect()


def test_epochs_that_nobody_evaluates_have_no_effect(spark: SparkSession, count: str, tmp_path: Path) -> None:
    counted(Stream(spark, tmp_path / "a", count), {0: collected, 3: collected, 4: collected})
    counted(Stream(spark, tmp_path / "b", count), {2: collected})


@pytest.mark.long
def test_epochs_that_nobody_evaluates_have_no_effect_with_a_store(
    spark: SparkSession, count: str, tmp_path: Path, platform: Platform
) -> None:
    """Also if the state has to be restored from the store."""

    def lost(df: DataFrame) -> list[Any]:
        node = connect_node(platform.node)
        (session,) = [s.session for s in node.sessions(count).sessions if s.session not in before]
        node.drop_state(count, session, force=True)
        return df.collect()

    before = {s.session for s in connect_node(platform.node).sessions(count).sessions}
    counted(Stream(spark, tmp_path / "s", count, store=str(tmp_path / "store")), {1: collected, 3: collected, 6: lost, 7: collected})


@pytest.mark.long
def test_after_a_restart_epochs_that_nobody_evaluated_are_refused_and_the_remedy_goes_on(
    spark: SparkSession, count: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, count)
    for _ in range(3):
        stream.add()
    stream.run(each=lambda df, epoch: stream.gather(df, epoch) if epoch < 2 else None)
    stream.add()
    with pytest.raises(
        PySparkException, match=r"continues with epoch 3, but its state reaches up to epoch 1.*with start='empty', which goes"
    ):
        stream.run()
    again = Stream(spark, tmp_path / "again", count, start="empty")
    again.directory, again.input, again.files, again.rows = stream.directory, stream.input, stream.files, stream.rows
    again.run()
    counts = Counter(key_of(1000 * epoch + i) for epoch in (0, 1) for i in range(40))
    for i, k, n in sorted(again.rows[3]):
        counts[k] += 1
        assert (k, n) == (key_of(i), counts[k])


@pytest.mark.long
@pytest.mark.parametrize("by", ["threads", "a union"])
def test_two_evaluations_at_once_are_right_or_told_and_the_remedy_works(spark: SparkSession, count: str, tmp_path: Path, by: str) -> None:
    together = threading.Barrier(2)

    def both(df: DataFrame) -> list[Any]:
        if by == "a union":
            rows = Counter(df.union(df).collect())
            assert set(rows.values()) <= {2}
            return list(rows)

        def one(_: int) -> list[Any]:
            together.wait(bound(60))
            return df.collect()

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(one, range(2))
        assert sorted(first) == sorted(second)
        return first

    def persisted(df: DataFrame) -> list[Any]:
        df.persist()
        try:
            return both(df)
        finally:
            df.unpersist()

    told: list[str] = []
    for n in range(4):
        try:
            counted(Stream(spark, tmp_path / f"{n}", count), dict.fromkeys(range(3), both))
        except PySparkException as e:
            told.append(str(e))
            together.reset()
    assert all("evaluated twice at once" in text and "persist()" in text and "uid=" in text for text in told), told
    counted(Stream(spark, tmp_path / "persisted", count), dict.fromkeys(range(3), persisted))


def test_a_batch_that_uses_its_answers_twice_has_them_twice_alike(spark: SparkSession, count: str) -> None:
    """Each evaluation is a job of its own, with its own state."""
    df = spark.range(60).selectExpr("id", "concat('k', id % 7) k")
    counted_once = udo(count)(df, key="k")
    assert Counter(counted_once.union(counted_once).collect()) == Counter(2 * counted_once.collect())
    joined = counted_once.join(counted_once.withColumnRenamed("n", "m"), ["id", "k"])
    assert joined.where("n <> m").count() == 0 and joined.count() == 60


@pytest.mark.long
def test_a_static_call_beside_a_stream_is_the_same_in_each_micro_batch(spark: SparkSession, count: str, tmp_path: Path) -> None:
    static = udo(count)(spark.range(17).selectExpr("id", "concat('k', id) k"), key="k").select("k", F.col("n").alias("m"))
    stream = Stream(spark, tmp_path, count)
    for _ in range(3):
        stream.add()
    seen: list[int] = []

    def each(df: DataFrame, epoch: int) -> None:
        rows = df.collect()
        seen.extend(r.m for r in rows)
        stream.rows[epoch] = [(r.id, r.k, r.n) for r in rows]

    stream.run(lambda df: df.join(static, "k"), each)
    stream.check()
    assert set(seen) == {1}


@pytest.mark.long
def test_part_of_the_answers_is_read_and_the_state_is_that_of_all(spark: SparkSession, count: str, tmp_path: Path) -> None:
    def some(df: DataFrame) -> list[Any]:
        df.sample(0.3, seed=1).collect()
        df.select("k").distinct().collect()
        assert len(df.orderBy("id").limit(3).collect()) == 3
        return df.collect()

    counted(Stream(spark, tmp_path, count), dict.fromkeys(range(3), some))


def test_two_keyed_streams_in_one_query_and_one_behind_the_other(spark: SparkSession, count: str, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, count, uid="first")
    for _ in range(3):
        stream.add()

    def after(df: DataFrame) -> DataFrame:
        again = udo(count)(df.drop("n"), key="k", uid="second")
        other = udo(count)(stream.source(), key="k", uid="third").withColumn("id", -1 - F.col("id"))
        return again.union(other).coalesce(1)

    def each(df: DataFrame, epoch: int) -> None:
        rows = df.collect()
        stream.rows[epoch] = [tuple(r) for r in rows if r.id >= 0]  # type: ignore[misc]
        assert sorted((-1 - r.id, r.k, r.n) for r in rows if r.id < 0) == sorted(stream.rows[epoch])

    stream.run(after, each)
    stream.check()


@pytest.mark.long
def test_a_window_behind_the_call_closes_in_micro_batches_without_data(platform: Platform, spark: SparkSession, tmp_path: Path) -> None:
    """Each run has one file, and then Spark's own micro-batch that only moves the watermark."""
    columns = {"t": "timestamp[us, tz=UTC]", "k": "string"}
    source = COUNT.replace('"id": event["id"]', '"t": event["t"]')
    name = platform.operator(source, entry="op:Count", key="k", input=columns, output={**columns, "n": "int64"})
    out: list[Any] = []
    (tmp_path / "in").mkdir()
    for minute in range(4):
        at = dt.datetime(2024, 1, 1, 0, minute, tzinfo=dt.UTC)
        pq.write_table(pa.table({"t": pa.array([at] * 6, pa.timestamp("us", "UTC")), "k": ["a", "b", "c"] * 2}), tmp_path / "draft")
        (tmp_path / "draft").rename(tmp_path / "in" / f"{minute}.parquet")
        df = udo(name)(spark.readStream.schema("t timestamp, k string").parquet(str(tmp_path / "in")), key="k")
        window = df.withWatermark("t", "0 seconds").groupBy(F.window("t", "10 seconds")).agg(F.count("*").alias("c"), F.max("n").alias("n"))
        query = (
            window.writeStream.foreachBatch(lambda d, e: out.extend(tuple(r) for r in d.collect()))
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "ckpt"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert [(c, n) for _, c, n in out] == [(6, 2), (6, 4), (6, 6)]


def test_the_plan_says_which_way_the_call_takes(spark: SparkSession, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    df = spark.range(3).selectExpr("id", "'a' k")
    with configured(spark, {"spark.sql.shuffle.partitions": "3"}):
        udo(count)(df, key="k").explain()
    assert f"Udo keys of {count} 3 partitions that say their number and epoch" in capsys.readouterr().out


@pytest.fixture
def unmarked(spark: SparkSession) -> Iterator[None]:
    """Use Spark without the jar, like a Spark that it does not compile for: tasks rely on what Spark and the rows tell them."""
    app = spark.sparkContext.applicationId
    before = jvm_path._attached.pop(app, None)
    jvm_path._attached[app] = Unavailable("it does not compile against this Spark")
    yield
    jvm_path._attached.pop(app)
    if before is not None:
        jvm_path._attached[app] = before


REFUSED = r"another thread than the query's evaluates the call. Do it in the thread that foreachBatch is called in"


def right_or_refused(spark: SparkSession, count: str, tmp_path: Path, plan: Plan) -> bool:
    """Return whether the answers were right; otherwise the call must have been refused."""
    try:
        right(spark, count, tmp_path, plan)
    except PySparkException as e:
        assert plan.inside in IN_THREADS and re.search(REFUSED, str(e)), e
        return False
    return True


@pytest.mark.parametrize(
    "plan",
    [
        Plan(behind=("coalesce",), epochs=EMPTY),
        long(Plan(inside="union with a table on its left")),
        long(Plan(inside="sorted", called="inside", epochs=EMPTY)),
        long(Plan(before=("columns", "filter"), partitions=(8, 2), epochs=EMPTY, adaptive=False)),
    ],
    ids=["coalesce", "union", "sorted", "columns"],
)
def test_without_the_jar_the_rows_tell_the_partition(spark: SparkSession, count: str, tmp_path: Path, unmarked: None, plan: Plan) -> None:
    right(spark, count, tmp_path, plan)


@pytest.mark.long
@pytest.mark.parametrize("called", ["stream", "inside"])
def test_without_the_jar_another_thread_is_refused_and_the_remedy_works(
    spark: SparkSession, count: str, tmp_path: Path, unmarked: None, called: str
) -> None:
    assert not right_or_refused(spark, count, tmp_path / "a", Plan(inside="in a thread", called=called))
    inherits = INSIDE["in a thread"]
    INSIDE["in a thread"] = lambda df: call_in_thread(inheritable_thread_target(df.sparkSession)(df.collect))
    try:
        right(spark, count, tmp_path / "b", Plan(inside="in a thread", called=called))
    finally:
        INSIDE["in a thread"] = inherits


def call_in_thread(evaluate: Callable[[], list[Any]]) -> list[Any]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(evaluate).result()


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(50))
def test_without_the_jar_any_plan_counts_right_or_is_refused(
    spark: SparkSession, count: str, tmp_path: Path, unmarked: None, seed: int
) -> None:
    right_or_refused(spark, count, tmp_path, Plan.drawn(seed))


@pytest.mark.long
def test_without_the_jar_a_store_needs_the_partitions_that_the_call_has_made(
    spark: SparkSession, count: str, tmp_path: Path, unmarked: None
) -> None:
    stream = Stream(spark, tmp_path / "right", count, store=str(tmp_path / "store"))
    for _ in range(2):
        stream.add()
    stream.run()
    stream.check()
    other = Stream(spark, tmp_path / "refused", count, store=str(tmp_path / "store"))
    other.add()
    with pytest.raises(PySparkException, match=r"rows of other partitions than its own.*in foreachBatch, with what df.localCheckpoint\(\)"):
        other.run(lambda df: df.coalesce(1))
    remedy = Stream(spark, tmp_path / "remedy", count, store=str(tmp_path / "store"))
    counted(remedy, dict.fromkeys(range(2), lambda df: df.localCheckpoint().coalesce(1).collect()))


@pytest.mark.parametrize(("way", "fires_in"), [("marked", 2), long("left alone", 3), long("unmarked", 4)])
def test_a_timer_fires_once_whichever_partitions_and_epochs_have_no_event(
    platform: Platform, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, way: str, fires_in: int
) -> None:
    """The timer is that of key `a`, which has events in epochs 0 and 4; the watermark is past it from epoch 2 on."""
    if way == "unmarked":
        request.getfixturevalue("unmarked")
    name = platform.operator(TIMED, **{**TIMED_MANIFEST, "entry": "op:Timed"})
    stream = Stream(spark, tmp_path, name)
    for epoch, key in enumerate("abbba"):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=100 * (epoch > 0) + epoch)
        table = {"id": pa.array([epoch], pa.int64()), "k": [key], "t": pa.array([at], pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(table), tmp_path / "draft")
        os.utime(tmp_path / "draft", (1_700_000_000 + epoch,) * 2)
        (tmp_path / "draft").rename(stream.input / f"{epoch}.parquet")
    source = spark.readStream.schema("id long, k string, t timestamp").option("maxFilesPerTrigger", 1).parquet(str(stream.input))

    def each(df: DataFrame, epoch: int) -> None:
        if not (way == "left alone" and epoch == 2):
            stream.gather(df, epoch)

    with configured(spark, {"spark.sql.shuffle.partitions": "8"}):
        query = udo(name)(source, key="k").writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    fired = [epoch for epoch, rows in stream.rows.items() for i, k, _ in rows if i < 0 and k == "a"]
    assert fired == [fires_in], stream.rows


@pytest.mark.long
@pytest.mark.parametrize("group", [None, "mine"])
def test_without_the_jar_a_foreach_batch_that_takes_its_querys_job_group_away_is_told_so(
    spark: SparkSession, count: str, tmp_path: Path, unmarked: None, group: str | None
) -> None:
    """Without the query's run, a restarted query could not be told from its zombie."""
    stream = Stream(spark, tmp_path, count)
    stream.add()

    def each(df: DataFrame, epoch: int) -> None:
        df.sparkSession.sparkContext.setLocalProperty("spark.jobGroup.id", group)
        udo(count)(df, key="k").collect()

    query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt")).start()
    try:
        with pytest.raises(PySparkException, match=f"needs the run of its streaming query.*got '{group or ''}'"):
            query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.long
def test_without_the_jar_asynchronous_progress_tracking_is_refused_before_the_first_event(
    spark: SparkSession, platform: Platform, tmp_path: Path, unmarked: None
) -> None:
    refuses_asynchronous_progress(Stream(spark, tmp_path, platform.operator(COUNT, **MANIFEST)), platform, inside=False)
