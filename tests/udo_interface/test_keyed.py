"""Keyed operators under Spark: running counts per key, as if every epoch ran exactly once, whatever Spark does to it."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F

from tests.support.keyed_stream import COUNT, KEYS, MANIFEST, Stream, key_of, refuses_asynchronous_progress
from tests.support.selection import long
from udo_cli.state_file import ended_groups
from udo_cli.text.state_text import entries
from udo_interface import udo
from udo_interface.spark import call, keyed_plan
from udo_interface.spark.keyed_plan import Batch
from udo_interface.store.spark_partitions import groups_of
from udo_protocol.errors import SchemaError, UsageError
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform


@pytest.fixture(scope="module")
def count(platform: Platform) -> str:
    return platform.operator(COUNT, **MANIFEST)


@pytest.fixture
def stream(spark: SparkSession, count: str, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, tmp_path, count)


def test_the_groups_a_partition_answers_for_are_those_spark_sends_it(spark: SparkSession) -> None:
    for partitions, key_groups in ((1, KEY_GROUPS), (3, KEY_GROUPS), (8, 1000)):
        df = spark.range(key_groups).select(F.col("id").cast("int").alias("g")).repartition(partitions, "g")
        sent = {r.g: r.p for r in df.select("g", F.spark_partition_id().alias("p")).collect()}
        assert {g: p for p in range(partitions) for g in groups_of(p, partitions, key_groups)} == sent


@pytest.mark.both_paths
def test_counts_go_on_over_epochs_and_over_a_restart_of_the_query(stream: Stream) -> None:
    for _ in range(3):
        stream.add()
    stream.run()
    stream.add()
    stream.run()
    stream.check()


def test_a_driver_whose_clock_is_behind_that_of_the_run_before_goes_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.add()
    stream.run()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86_400)
    stream.add()
    stream.run()
    stream.check()


@pytest.mark.both_paths
def test_a_task_that_fails_after_its_answers_counts_once(stream: Stream) -> None:
    def fail_first(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the first attempt fails at its end")

    for _ in range(3):
        stream.add()
    stream.run(lambda df: df.mapInArrow(fail_first, df.schema))
    stream.check()


@pytest.mark.both_paths
def test_a_python_worker_that_is_killed_counts_once(stream: Stream) -> None:
    def die_first(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0 and context.partitionId() == 1:
                os._exit(1)
            yield batch

    for _ in range(2):
        stream.add()
    stream.run(lambda df: df.mapInArrow(die_first, df.schema))
    stream.check()


@pytest.mark.both_paths
def test_a_batch_replayed_after_its_commit_was_lost_counts_once(stream: Stream) -> None:
    for _ in range(2):
        stream.add()
    stream.run()
    for name in ("1", ".1.crc"):
        (stream.directory / "ckpt" / "commits" / name).unlink(missing_ok=True)
    stream.add()
    stream.run()
    stream.check()


@pytest.mark.both_paths
def test_another_number_of_shuffle_partitions_after_a_restart_keeps_the_state(stream: Stream, spark: SparkSession) -> None:
    stream.add()
    stream.run()
    (stream.directory / "ckpt" / "commits" / "0").unlink()
    (stream.directory / "ckpt" / "commits" / ".0.crc").unlink(missing_ok=True)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "5")
        stream.add()
        stream.run()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    stream.check()


@pytest.mark.both_paths
def test_one_dataframe_evaluated_twice_in_foreach_batch_counts_once(stream: Stream) -> None:
    def twice(df: DataFrame, epoch: int) -> None:
        first, second = ([tuple(r) for r in df.collect()] for _ in range(2))
        assert sorted(first) == sorted(second)
        stream.rows[epoch] = second  # type: ignore[assignment]

    for _ in range(3):
        stream.add()
    stream.run(each=twice)
    stream.check()


@pytest.mark.long
@pytest.mark.both_paths
def test_an_operator_called_inside_foreach_batch_keeps_its_state(spark: SparkSession, count: str, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, count)
    planned: set[int] = set()
    for _ in range(3):
        stream.add()

    def each(df: DataFrame, epoch: int) -> None:
        planned.add(udo(count)._plan(df, keyed_plan.around(df)))
        stream.rows[epoch] = [tuple(r) for r in udo(count)(df, key="k").collect()]  # type: ignore[misc]

    query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(planned) == 1, "a run has one place among the runs, however often it plans"
    stream.check()


def test_a_call_inside_foreach_batch_has_one_id_in_a_run_and_a_second_one_with_the_same_state_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "_batches", {})
    monkeypatch.setattr(call, "_KEPT_ENTRIES", 3)

    def made(run: str, batch: str, *of: str) -> str:
        return call._call_id(Batch("query", run, batch), *of)

    assert made("first", "5", "count", "") == "foreachBatch.1"
    assert made("second", "5", "count", "") == "foreachBatch.1", "the run before has failed in the batch"
    assert made("second", "6", "count", "other") == made("second", "6", "sum", "") == "foreachBatch.1", "calls with states of their own"
    assert [made("second", "6", "count", "") for _ in range(2)] == ["foreachBatch.1", "foreachBatch.2"]
    assert made("second", "7", "count", "") == "foreachBatch.1"
    assert {run for _, run, *_ in call._batches} == {"second"}, "what is known of runs that have ended is not kept for ever"


@pytest.mark.parametrize("other", [long(False), True])
def test_a_call_inside_foreach_batch_goes_on_after_a_batch_that_failed_behind_it_and_beside_a_call_in_some_batches(
    stream: Stream, count: str, other: bool
) -> None:
    failing = [1]
    for _ in range(4):
        stream.add()

    def each(df: DataFrame, epoch: int) -> None:
        if other and epoch < 2:
            udo(count)(df, key="k", uid="other").collect()
        stream.rows[epoch] = [tuple(r) for r in udo(count)(df, key="k").collect()]  # type: ignore[misc]
        if epoch in failing:
            failing.remove(epoch)
            raise RuntimeError("it fails behind the call")

    def run() -> None:
        query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(stream.directory / "ckpt")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(PySparkException, match="it fails behind the call"):
        run()
    run()
    stream.check()


@pytest.mark.parametrize("group", [None, long("mine")])
def test_a_foreach_batch_may_take_its_querys_job_group_away(stream: Stream, count: str, group: str | None) -> None:
    def each(df: DataFrame, epoch: int) -> None:
        df.sparkSession.sparkContext.setLocalProperty("spark.jobGroup.id", group)
        stream.rows[epoch] = [tuple(r) for r in udo(count)(df, key="k").collect()]  # type: ignore[misc]

    for _ in range(2):
        stream.add()
        query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(stream.directory / "ckpt")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    stream.check()


@pytest.mark.both_paths
# Few rows, which fit into any buffer; and so many that Spark has its row long before the last one is answered.
@pytest.mark.parametrize(("rows", "frame_rows"), [(60, 4), long(60_000, 1_000)])
def test_a_task_that_a_limit_reads_from_counts_whole_and_a_partition_that_spark_does_not_run_not_at_all(
    stream: Stream, spark: SparkSession, rows: int, frame_rows: int
) -> None:
    """Epoch 1 is evaluated with a limit and then in full, epoch 2 the other way round, epoch 3 only with a limit."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    limited: list[int] = []
    counted: dict[int, dict[str, tuple[int, int]]] = {}

    def each(df: DataFrame, epoch: int) -> None:
        def full() -> None:
            of_key = df.groupBy("k").agg(F.max("n").alias("n"), F.first("p").alias("p")).collect()
            counted[epoch] = {r.k: (r.n, r.p) for r in of_key}

        def limit() -> None:
            limited.append(len(df.limit(1).collect()))

        for step in {1: (limit, full), 2: (full, limit), 3: (limit,)}.get(epoch, (full,)):
            step()

    sizes = (60, rows, rows, rows, 60)
    for n in sizes:
        stream.add(n)
    spark.conf.set(key, str(frame_rows))
    try:
        stream.run(lambda df: df.withColumn("p", F.spark_partition_id()), each=each)
    finally:
        spark.conf.set(key, before)
    assert limited == [1, 1, 1]
    sent = [Counter(key_of(1000 * epoch + i) for i in range(n)) for epoch, n in enumerate(sizes)]
    partition = {k: p for of_key in counted.values() for k, (_, p) in of_key.items()}
    assert set(partition.values()) == {0, 1}
    for epoch, of_key in counted.items():
        for k, (n, p) in of_key.items():  # in the epoch that is only limited, the row is from the first partition
            assert n == sum(sent[e][k] for e in range(epoch + 1) if e != 3 or p == 0), (epoch, k, p)


@pytest.mark.both_paths
@pytest.mark.parametrize("rows", [40, long(60_000)])
def test_a_partition_that_spark_does_not_read_counts_whole(spark: SparkSession, stream: Stream, rows: int) -> None:
    """A join that finds its other side empty reads none of the rows."""
    for _ in range(3):
        stream.add(rows)

    def each(df: DataFrame, epoch: int) -> None:
        none = df.sparkSession.createDataFrame([], "k string")
        stream.gather(df.join(F.broadcast(none), "k") if epoch == 1 else df, epoch)

    # With these off, Spark checks whether the other side is empty before it asks for a row.
    settings = ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage")
    for name in settings:
        spark.conf.set(name, "false")
    try:
        stream.run(each=each)
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert stream.rows[1] == []
    sent = [Counter(key_of(1000 * epoch + i) for i in range(rows)) for epoch in range(3)]
    found: dict[str, list[int]] = {}
    for _, k, n in stream.rows[2]:
        found.setdefault(k, []).append(n)
    assert {k: sorted(ns) for k, ns in found.items()} == {
        k: list(range(sent[0][k] + sent[1][k] + 1, sent[0][k] + sent[1][k] + n + 1)) for k, n in sent[2].items()
    }


@pytest.mark.both_paths
def test_a_streams_own_limit_counts_every_event(stream: Stream, platform: Platform, count: str) -> None:
    """Spark passes on a few answers, but reads all."""
    for _ in range(2):
        stream.add(60)
    query = stream.start(lambda df: df.limit(2))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert [len(rows) for rows in stream.rows.values()] == [2, 0]
    parts = connect_node(platform.node).export_state(count, str(query.id))
    kept = {e["key"]: e["state"]["n"] for e in entries(ended_groups(parts, next(parts).header.state_version))}
    assert kept == Counter(key_of(1000 * epoch + i) for epoch in range(2) for i in range(60))


def test_the_same_call_twice_in_one_plan_is_named(stream: Stream, count: str) -> None:
    stream.add()
    with pytest.raises(PySparkException, match="uid="):
        stream.run(lambda df: udo(count)(df.drop("n"), key="k"))


@pytest.mark.long
@pytest.mark.both_paths
def test_two_calls_with_names_of_their_own_each_keep_their_state(spark: SparkSession, count: str, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, count, uid="first")
    for _ in range(2):
        stream.add()
    stream.run(lambda df: udo(count)(df.drop("n"), key="k", uid="second"))
    stream.check()


@pytest.mark.both_paths
def test_two_queries_on_one_deployment_do_not_see_each_other(spark: SparkSession, count: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        stream = Stream(spark, tmp_path / name, count)
        stream.add()
        stream.run()
        stream.check()


@pytest.mark.long
@pytest.mark.both_paths
def test_state_that_is_older_than_the_query_is_an_error_that_names_both_epochs(
    stream: Stream, platform: Platform, spark: SparkSession
) -> None:
    for _ in range(2):
        stream.add()
    stream.run()
    ckpt = stream.directory / "ckpt"
    other = Stream(spark, stream.directory / "other", platform.operator(COUNT, **MANIFEST))
    for _ in range(3):
        other.add()
    shutil.copytree(ckpt, other.directory / "ckpt")
    for log in (other.directory / "ckpt" / "sources").rglob("*"):
        if log.is_file():
            log.unlink() if log.suffix == ".crc" else log.write_text(log.read_text().replace(str(stream.input), str(other.input)))
    with pytest.raises(PySparkException, match="expected state up to epoch 1, found none"):
        other.run()


@pytest.mark.both_paths
def test_a_killed_instance_is_replaced_within_the_epoch(stream: Stream, platform: Platform, count: str) -> None:
    import signal

    for _ in range(3):
        stream.add(200)
    killed: list[int] = []

    def each(df: DataFrame, epoch: int) -> None:
        os.kill(platform.slots(count)[0].pid, signal.SIGKILL)
        killed.append(epoch)
        stream.rows[epoch] = [tuple(r) for r in df.collect()]  # type: ignore[misc]

    stream.run(each=each)
    assert killed == [0, 1, 2]
    stream.check()


@pytest.mark.both_paths
def test_a_batch_job_starts_empty_and_drops_its_state(spark: SparkSession, count: str) -> None:
    df = spark.createDataFrame([(i, key_of(i)) for i in range(100)], "id long, k string")
    for _ in range(2):
        rows = udo(count)(df, key="k").collect()
        last = {r.k: r.n for r in sorted(rows)}
        assert last == Counter(key_of(i) for i in range(100))


def test_an_rdd_that_is_partitioned_by_key_takes_a_keyed_operator(spark: SparkSession, count: str) -> None:
    rdd = spark.sparkContext.parallelize([(key_of(i), i) for i in range(100)], 2).partitionBy(3)
    rows = rdd.map(lambda p: Row(id=p[1], k=p[0])).mapPartitions(udo(count, key="k").map_partitions).collect()
    assert Counter(r.k for r in rows) == {r.k: max(s.n for s in rows if s.k == r.k) for r in rows}


def test_an_rdd_may_have_as_many_partitions_as_its_keyed_operator_has_key_groups(spark: SparkSession, platform: Platform) -> None:
    platform.push(COUNT, name="groups", **MANIFEST)
    platform.deploy("groups", limits={"key_groups": 2})
    pairs = spark.sparkContext.parallelize([("a", 1), ("b", 2), ("a", 3)], 1)

    def counted(partitions: int) -> list[Any]:
        rows = pairs.partitionBy(partitions).map(lambda p: Row(id=p[1], k=p[0]))
        return sorted(map(tuple, rows.mapPartitions(udo("groups", key="k").map_partitions).collect()))

    assert counted(2) == [(1, "a", 1), (2, "b", 1), (3, "a", 2)]
    with pytest.raises((PySparkException, Py4JJavaError), match=r"expected at most 2 partitions, got number 3. .*--key-groups"):
        counted(3)


def test_a_call_that_does_not_fit_the_operators_key_is_refused_with_the_remedy(spark: SparkSession, count: str, platform: Platform) -> None:
    df = spark.createDataFrame([(1, "a")], "id long, k string")
    stateless = platform.operator()
    with pytest.raises(UsageError, match="call it with key='k'"):
        udo(count)(df)
    with pytest.raises(UsageError, match="call it with key='k', got key=\\['id'\\]"):
        udo(count)(df, key="id")
    with pytest.raises(UsageError, match="keeps no state"):
        udo(stateless)(df, key="k")
    with pytest.raises(UsageError, match="key= and pin="):
        udo(count)(df, key="k", pin="epoch")
    with pytest.raises(UsageError, match="pinned version"):
        udo(f"{count}@1")(df, key="k")
    with pytest.raises(SchemaError, match="keep='__UDO_group': .* rename yours before the call"):
        udo(count)(df.withColumn("__UDO_group", df.id), key="k", keep="__UDO_group")
    answers = udo(count)(df.withColumn("__udo_group", df.id), key="k")  # it is not to be kept
    assert [tuple(r) for r in answers.collect()] == [(1, "a", 1)]


@contextmanager
def _set(spark: SparkSession, **conf: str) -> Iterator[None]:
    """Set options that are otherwise given at the start of the application."""
    told = spark._jsparkSession.sessionState().conf()
    names = {key.replace("_", "."): value for key, value in conf.items()}
    for key, value in names.items():
        told.setConfString(key, value)
    try:
        yield
    finally:
        for key in names:
            told.unsetConf(key)


@pytest.mark.both_paths
def test_a_micro_batch_in_which_nothing_reaches_an_operator_is_an_epoch_for_it(spark: SparkSession, stream: Stream) -> None:
    """By itself, adaptive execution runs no task where it finds no input."""
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    for _ in range(4):
        stream.add()
    some = stream.source().where("id div 1000 not in (0, 2)").repartition(2).select("k", "id")
    query = udo(stream._operator)(some, key="k").writeStream.foreachBatch(stream.gather)
    query.option("checkpointLocation", str(stream.directory / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    assert [len(rows) for _, rows in sorted(stream.rows.items())] == [0, 40, 0, 40]
    for key in map(key_of, range(KEYS)):
        counts = sorted(n for _, k, n in stream.rows[1] + stream.rows[3] if k == key)
        assert counts == list(range(1, len(counts) + 1))


def test_the_call_itself_refuses_speculation_for_a_keyed_operator_alone(spark: SparkSession, count: str, platform: Platform) -> None:
    df = spark.createDataFrame([(1, "a")], "id long, k string")
    for said in ("true", "True"):  # the latter by SparkConf().set("spark.speculation", True)
        with _set(spark, spark_speculation=said):
            for refused in (lambda: udo(count)(df, key="k"), lambda: udo(count, key="k").map_partitions):
                with pytest.raises(UsageError, match="spark.speculation=false"):
                    refused()
            udo(platform.operator())(df)
    udo(count)(df, key="k")


@pytest.mark.both_paths
@pytest.mark.parametrize("inside", [long(False), True])
def test_asynchronous_progress_tracking_is_refused_before_the_first_event(stream: Stream, platform: Platform, inside: bool) -> None:
    """Spark sees a stateless plan and allows it; after a restart, such a query runs several of its epochs as one."""
    refuses_asynchronous_progress(stream, platform, inside=inside)
