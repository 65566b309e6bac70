"""Streaming DataFrames through an operator: epochs, live updates under way, one version per epoch, and a lost queue server."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from benchmarks.chaos.streaming import committed
from tests.conftest import wait_until
from tests.support.stream import OUT, VERSION, running
from udo_interface import udo
from udo_interface.spark import settings
from udo_protocol.queue.keys import SlotKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.udo_interface.conftest import Platform

BATCH_ROWS = 100
# The event in the second file at which an operator is held, and the frame length, so short that frames behind it wait unanswered.
HELD, FRAME_ROWS = 50, 10


class Stream:
    """Files that appear one by one, each a micro-batch of BATCH_ROWS events, through an operator into a list of rows."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self.directory = spark, directory
        self.input = directory / "in"
        self.input.mkdir()
        self.files = 0
        self.rows: dict[int, list[Any]] = {}

    def add(self, files: int = 1) -> None:
        """Write files of consecutive ids."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for _ in range(files):
            first = self.files * BATCH_ROWS
            pq.write_table(pa.table({"id": pa.array(range(first, first + BATCH_ROWS), pa.int64())}), self.directory / "draft")
            os.utime(self.directory / "draft", (1_700_000_000 + self.files,) * 2)  # Spark takes files in the order of their times
            (self.directory / "draft").rename(self.input / f"{self.files:06}.parquet")
            self.files += 1

    def start(self, through: Any) -> StreamingQuery:
        """Start (or restart) the query; answered rows are gathered by epoch."""
        source = self._spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(self.input))

        def gather(df: DataFrame, epoch: int) -> None:
            self.rows[epoch] = df.collect()

        return through(source).writeStream.foreachBatch(gather).option("checkpointLocation", str(self.directory / "ckpt")).start()

    def all(self) -> list[Any]:
        """Return all rows in the order of epochs."""
        return [r for epoch in sorted(self.rows) for r in self.rows[epoch]]


@contextmanager
def frames_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """Make Spark hand over this many events at a time."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, str(rows))
    try:
        yield
    finally:
        spark.conf.set(key, before)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


@pytest.mark.long
def test_the_chaos_judges_each_epoch_by_the_files_that_spark_gave_it(stream: Stream) -> None:
    stream.add(2)
    with running(stream.start(lambda df: df)) as query:
        query.processAllAvailable()
    for entry in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc"):  # stopped between the source's entry and the epoch's
        (stream.directory / "ckpt" / entry).unlink()
    assert committed(stream.directory / "ckpt") == [["000000"]]
    stream.add(2)
    with running(stream.start(lambda df: df)) as query:
        query.processAllAvailable()
    found = committed(stream.directory / "ckpt")
    assert found == [["000000"], ["000001", "000002"], ["000003"]]
    for epoch, files in enumerate(found):
        first = int(files[0]) * BATCH_ROWS
        assert [r.id for r in stream.rows[epoch]] == list(range(first, first + len(files) * BATCH_ROWS))


@pytest.mark.both_paths
def test_each_event_of_a_stream_is_answered_once_across_a_restart(stream: Stream, platform: Platform) -> None:
    name = platform.operator(VERSION.format(v=1), output=OUT)
    stream.add(2)
    with running(stream.start(udo(name))) as query:
        query.processAllAvailable()
    stream.add(2)
    with running(stream.start(udo(name))) as query:
        query.processAllAvailable()
    assert [r.id for r in stream.all()] == list(range(4 * BATCH_ROWS))


@pytest.mark.both_paths
def test_a_live_update_during_the_query_loses_and_doubles_nothing(stream: Stream, spark: SparkSession, platform: Platform) -> None:
    """Twice: behind a frame that the old version holds, with the rest of its epoch unanswered; and while the query is idle."""
    go = platform.sign()
    holding = f"""
        import pathlib, time
        import pyarrow as pa
        from udo_runtime import operator
        @operator
        def run(batch):
            if {BATCH_ROWS + HELD} in batch.column("id").to_pylist():
                while not pathlib.Path({str(go)!r}).exists():
                    print("holding", flush=True)
                    time.sleep(0.05)
            return {{"id": batch.column("id"), "v": pa.repeat(1, batch.num_rows)}}
        """
    name = platform.operator(holding, output=OUT)
    for v in (2, 3):
        platform.push(VERSION.format(v=v), name=name, version=str(v), output=OUT)
    stream.add(3)
    with frames_of(spark, FRAME_ROWS), running(stream.start(udo(name))) as query:
        wait_until(lambda: platform.said(name, "holding"), 60, "the operator to hold a frame")
        assert platform.update(name, "2") == "done"
        go.touch()
        query.processAllAvailable()
        assert platform.update(name, "3") == "done"
        stream.add(3)
        query.processAllAvailable()
    rows = stream.all()
    assert [r.id for r in rows] == list(range(6 * BATCH_ROWS))
    versions = [r.v for r in rows]
    assert versions == sorted(versions) and versions[BATCH_ROWS - 1] == 1
    assert versions[BATCH_ROWS + HELD :] == [2] * (2 * BATCH_ROWS - HELD) + [3] * 3 * BATCH_ROWS


@pytest.mark.both_paths
def test_pin_epoch_answers_every_epoch_with_one_version_and_follows_at_the_next(stream: Stream, platform: Platform) -> None:
    name = platform.operator(VERSION.format(v=1), output=OUT)
    platform.push(VERSION.format(v=2), name=name, version="2", output=OUT)
    with running(stream.start(udo(name, pin="epoch"))) as query:
        stream.add(2)
        query.processAllAvailable()
        assert platform.update(name, "2") == "done"
        stream.add(2)
        query.processAllAvailable()
    versions = {epoch: {r.v for r in rows} for epoch, rows in stream.rows.items()}
    assert versions == {0: {1}, 1: {1}, 2: {2}, 3: {2}}
    bound = platform.api.epoch(name, query.id, 0)
    assert bound["version"] == "1", "a retry of epoch 0 is answered by the version it was bound to"


@pytest.mark.both_paths
def test_an_operator_error_ends_the_query_and_names_the_epoch(stream: Stream, platform: Platform) -> None:
    name = platform.operator(
        """
        from udo_runtime import Operator
        class run(Operator):
            def process(self, event, ctx):
                if event["id"] == 150:
                    raise KeyError("no such card")
                yield {"id": event["id"], "v": 1}
        """,
        output=OUT,
    )
    stream.add(2)
    with running(stream.start(udo(name))) as query, pytest.raises(PySparkException) as caught:
        query.processAllAvailable()
    text = str(caught.value)
    assert "epoch 1" in text and "no such card" in text and '"id": 150' in text
    assert [r.id for r in stream.all()] == list(range(BATCH_ROWS))


def test_real_time_mode_holds_answers_of_the_python_path_back_which_is_told_once() -> None:
    conf = {"spark.app.id": "a1", settings.REAL_TIME_CHECK: "false"}
    with pytest.warns(settings.DelayedResults, match=r"\.maxRecordsPerBatch\).*; on the JVM path they do not") as told:
        settings.check_python_path(lambda k, d: conf.get(k, d), streaming=True)
    assert len(told) == 1
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        settings.check_python_path(lambda k, d: conf.get(k, d), streaming=True)
        settings.check_python_path(lambda k, d: d, streaming=True)
        settings.check_python_path(lambda k, d: d, streaming=False)
    assert again == []


@pytest.mark.parametrize("path", settings.PATHS)
def test_a_call_on_the_python_path_alone_warns_of_real_time_mode(spark: SparkSession, platform: Platform, path: str) -> None:
    name, df = platform.operator(), spark.readStream.format("rate").load().selectExpr("value AS id")
    told = spark._jsparkSession.sessionState().conf()
    conf = {settings.REAL_TIME_CHECK: "false", "spark.app.id": f"the-call-itself-{path}"}  # told once per application
    try:
        for key, value in conf.items():
            told.setConfString(key, value)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            udo(name, path=path)(df)
    finally:
        for key in conf:
            told.unsetConf(key)
    assert [w.category for w in seen] == [settings.DelayedResults] * (path == settings.PYTHON)


def test_with_pipelining_each_batch_is_answered_before_the_next_one_is_read(
    spark: SparkSession, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Python worker that Spark tells to hand out answers while input still comes."""
    import pyarrow as pa

    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    task: Any = udo(platform.operator()).map_partitions
    answered = 0

    def source() -> Iterator[Any]:
        for i in range(4):
            assert answered == i
            yield pa.record_batch({"id": [i]})

    for _ in task.__self__.arrow(source()):
        answered += 1
    assert answered == 4


def _kill_the_server(platform: Platform, name: str) -> None:
    platform.kill_queue_server()


def _break_the_log(platform: Platform, name: str) -> None:
    with closing(platform.queue()) as queue:
        queue.call("SET", f"{SlotKeys(name, 0)}base", "99999999999999999999")
        queue.call("SET", f"{SlotKeys(name, 0)}emitted", "garbage")


@pytest.mark.both_paths
def test_a_lost_queue_server_is_survived_by_the_retry_of_the_task(stream: Stream, platform: Platform) -> None:
    _survived(stream, platform, _kill_the_server)


@pytest.mark.both_paths
def test_a_log_that_its_operator_broke_is_survived_by_the_retry_of_the_task(stream: Stream, platform: Platform) -> None:
    _survived(stream, platform, _break_the_log)


def _survived(stream: Stream, platform: Platform, fault: Callable[[Platform, str], None]) -> None:
    go = platform.sign()
    name = platform.operator(
        f"""
        import os, pathlib, time
        import pyarrow as pa
        from udo_runtime import operator
        @operator
        def run(batch):
            if not pathlib.Path({str(go)!r}).exists():
                print("holding", flush=True)
                time.sleep(60)  # the test takes the log away meanwhile
            return {{"id": batch.column("id"), "v": pa.repeat(1, batch.num_rows)}}
        """,
        output=OUT,
    )
    stream.add(1)
    with running(stream.start(udo(name))) as query:
        wait_until(lambda: platform.said(name, "holding"), 30, "the operator to hold a frame")
        go.touch()
        fault(platform, name)
        query.processAllAvailable()
    assert [r.id for r in stream.all()] == list(range(BATCH_ROWS))
