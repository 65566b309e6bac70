"""Operators in Spark's real-time mode, whose batches last for seconds: answers must not wait for their end, nor for the next event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import wait_until
from udo_interface import udo
from udo_interface.spark import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.udo_interface.conftest import Platform

VERSION = """
import pyarrow as pa
from udo_runtime import operator
@operator
def run(batch):
    if {bad} in batch.column("id").to_pylist():
        raise ValueError("no such card")
    return {{"id": batch.column("id"), "v": pa.repeat({v}, batch.num_rows)}}
"""
OUT = {"id": "int64", "v": "int64"}
# Says which events have been answered by the operator before it.
WITNESS = """
from udo_runtime import operator
@operator
def run(batch):
    print(f"has seen {batch.column('id')[-1]}.", flush=True)
    return batch
"""
COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        yield event
"""
# The shortest batch that real-time mode takes, and one that no test sees the end of.
SHORT, ENDLESS = "5 seconds", "1 hour"
THREAD = "udo input of task"


class Source:
    """Events 0, 1, 2 ... from the driver's memory, through calls, into a table that has the answers of ended batches."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql import DataFrame

        self._spark, self._jvm = spark, spark._jvm
        streams = self._jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        self._stream = streams.singlePartition(spark._jsparkSession, self._jvm.org.apache.spark.sql.Encoders.INT())
        self.df = DataFrame(self._stream.toDF(), spark).selectExpr("CAST(value AS BIGINT) AS id")
        self.sent = 0

    def send(self, events: int) -> None:
        self._stream.addData(self._jvm.scala.collection.immutable.Range.Exclusive(self.sent, self.sent + events, 1))
        self.sent += events

    def start(self, answered: DataFrame, batch: str = ENDLESS) -> StreamingQuery:
        writer = answered.writeStream.format("memory").queryName("answered").outputMode("update")
        return writer.trigger(realTime=batch).start()

    def answered(self) -> list[Any]:
        return self._spark.table("answered").collect()

    def threads(self) -> int:
        """The number of threads that read ahead."""
        every = self._jvm.java.lang.Thread.getAllStackTraces().keySet()
        return sum(thread.getName().startswith(THREAD) for thread in every)


@pytest.fixture
def real_time(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(settings.REAL_TIME_CHECK, "false")
    yield spark
    spark.conf.unset(settings.REAL_TIME_CHECK)


def _failed(query: StreamingQuery) -> str:
    wait_until(lambda: not query.isActive, 60, "the query to end")
    return str(query.exception())


def test_no_answer_waits_for_the_next_event_or_the_end_of_the_batch(real_time: SparkSession, platform: Platform) -> None:
    name = platform.operator(VERSION.format(v=1, bad=-1), output=OUT)
    witness = platform.operator(WITNESS, input=OUT, output=OUT)
    source = Source(real_time)
    query = source.start(udo(witness)(udo(name)(source.df)))
    try:
        for events in (1, 3, 1, 5_000, 1):
            source.send(events)
            seen = f"has seen {source.sent - 1}."
            wait_until(lambda: not query.isActive or platform.said(witness, seen), 60, f"the answer to event {source.sent - 1}")  # noqa: B023
        assert query.isActive and source.threads() == 2
    finally:
        query.stop()
    wait_until(lambda: not source.threads(), 30, "the threads of ended tasks to end")


def test_every_event_is_answered_once_in_order_over_batches_and_versions(real_time: SparkSession, platform: Platform) -> None:
    name = platform.operator(VERSION.format(v=1, bad=-1), output=OUT)
    platform.push(VERSION.format(v=2, bad=-1), name=name, version="2", output=OUT)
    source = Source(real_time)
    query = source.start(udo(name)(source.df), SHORT)

    def answered() -> int:
        wait_until(lambda: not query.isActive or len(source.answered()) >= source.sent, 90, f"{source.sent} answers")
        return len(source.answered())

    try:
        for events in (1, 3, 5_000, 1):
            source.send(events)
        old = answered()
        source.send(1_000)
        assert platform.update(name, "2") == "done"
        source.send(2)
        answered()
        rows = source.answered()
        assert query.exception() is None and len(query.recentProgress) > 1
    finally:
        query.stop()
    assert [row.id for row in rows] == list(range(source.sent))
    versions = [row.v for row in rows]
    assert versions == sorted(versions) and versions[:old] == [1] * old and versions[-2:] == [2, 2]


def test_an_event_that_the_operator_fails_on_ends_the_query_at_once_with_its_error(real_time: SparkSession, platform: Platform) -> None:
    name = platform.operator(VERSION.format(v=1, bad=2), output=OUT)
    source = Source(real_time)
    query = source.start(udo(name)(source.df))
    try:
        source.send(3)
        text = _failed(query)
    finally:
        query.stop()
    assert "no such card" in text and f"operator {name}" in text
    wait_until(lambda: not source.threads(), 30, "the threads of ended tasks to end")


def test_a_keyed_call_is_refused(real_time: SparkSession, platform: Platform) -> None:
    name = platform.operator(COUNT, entry="op:Count", key=["id"])
    source = Source(real_time)
    partitions = real_time.conf.get("spark.sql.shuffle.partitions")
    real_time.conf.set("spark.sql.shuffle.partitions", "1")  # this mode runs all stages at once
    query = source.start(udo(name, key="id")(source.df))
    real_time.conf.set("spark.sql.shuffle.partitions", str(partitions))
    try:
        source.send(1)
        text = _failed(query)
    finally:
        query.stop()
    assert "real-time mode" in text
