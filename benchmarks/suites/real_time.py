"""The latency of an event in Spark's real-time mode: without an operator, through one, and through a function in `mapInArrow`.

Events come one by one, open loop, from a source in the driver's memory; an event's latency is measured from when it was due until Spark
has its answer, by the same clock. The operator adds the difference between its row and the first one. The ways take turns, one
query each per round and rate; every query answers some events before those that count, and all within one batch of the mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import openloop
from benchmarks.harness.bringup import platform, say, spark_of, wait_until
from benchmarks.harness.quantiles import Latencies, Seconds, medians, summary_ms
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from udo_interface import java, udo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from benchmarks.harness.bringup import Platform

Call = Callable[["DataFrame"], "DataFrame"]
# Real-time mode takes plan nodes other than Spark's own only with the allow list off. The rest is for `mapInArrow`, which would hand
# out its answers when the batch ends.
SETTINGS = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.python.udf.pipelined.enabled": "true",
    "spark.buffer.size": "64",
}
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# The mode's batch begins some time after the query does, and ends this long after the last event.
WARM_UP_S, START_S, ANSWERED_S = 2.0, 5.0, 60.0
NONE, OPERATOR, NATIVE = "no operator", "one operator", "one function in mapInArrow, one event a batch"


@dataclass(frozen=True)
class Scale:
    """The rates in events/s, the seconds of a query that count, and the rounds."""

    rates: tuple[int, ...]
    seconds: float
    rounds: int


FULL, QUICK = Scale((10, 400), 5.0, 7), Scale((100,), 2.0, 1)


@dataclass(frozen=True)
class Way:
    """The latencies of one way at one rate, medians over the rounds."""

    way: str
    rate: int
    latencies: Latencies


@dataclass(frozen=True)
class Figures:
    """By way and rate."""

    ways: list[Way]
    seconds: float
    rounds: int
    driver: str


class Source:
    """Events with the numbers 0, 1, 2 … from the driver's memory; a client of an open-loop load."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql import DataFrame

        self._jvm: Any = spark._jvm
        streams = self._jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        self._stream = streams.singlePartition(spark._jsparkSession, self._jvm.org.apache.spark.sql.Encoders.INT())
        columns = ("CAST(value AS BIGINT) AS id", "CAST(value % 1000 AS BIGINT) AS card", "0.5D AS amount", "CAST(value AS BIGINT) AS at")
        self.df = DataFrame(self._stream.toDF(), spark).selectExpr(*columns)
        self.sent = 0

    def send(self, _: dict[str, Any]) -> None:
        """Send the next event."""
        self._stream.addData(self._jvm.scala.collection.immutable.Range.Exclusive(self.sent, self.sent + 1, 1))
        self.sent += 1

    def flush(self, timeout_s: float) -> None:
        """Return at once: the query's sink shows the answers."""


class Answers:
    """A query in real-time mode with a batch of `batch_s`. When that has ended, the answers can be read, each with its time."""

    def __init__(self, answered: DataFrame, batch_s: float) -> None:
        writer = answered.selectExpr("id", "java_method('java.lang.System', 'nanoTime') AS at_ns").writeStream
        self._spark = answered.sparkSession
        trigger = writer.format("memory").queryName("answers").outputMode("update").trigger(realTime=f"{batch_s:g} seconds")
        self.query: StreamingQuery = trigger.start()

    def collect(self, batch_s: float) -> list[tuple[int, float]]:
        """Return the number and the time (perf_counter, which is Java's clock on Linux) of every answer, in order of arrival."""

        def ended() -> bool:
            if (error := self.query.exception()) is not None:
                raise InvalidRun(f"the query has failed: {error}")
            return bool(self.query.recentProgress)

        wait_until(ended, batch_s + ANSWERED_S, "the batch to end")
        return [(row.id, int(row.at_ns) / 1e9) for row in self._spark.table("answers").collect()]


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def ways(p: Platform) -> dict[str, Call]:
    """Return the ways by their names in the table."""
    return {
        NONE: lambda df: df,
        OPERATOR: udo("forward", registry=p.registry_url),
        NATIVE: lambda df: df.mapInArrow(_same, df.schema),
    }


def measure(spark: SparkSession, way: str, call: Call, rate: int, seconds: float) -> Seconds:
    """Run a query; return the latency of each event that counts. InvalidRun unless each event was answered once, in order, in one batch."""
    source, batch_s = Source(spark), START_S + WARM_UP_S + seconds
    spark.conf.set(BATCH_ROWS, "1" if way == NATIVE else java.SETTINGS[BATCH_ROWS])
    answers = Answers(call(source.df), batch_s)
    try:
        openloop.send(source, rate, int(rate * WARM_UP_S), _event)
        first = source.sent
        sent = openloop.send(source, rate, int(rate * seconds), _event)
        found = answers.collect(batch_s)
    finally:
        answers.query.stop()
    if [number for number, _ in found] != list(range(source.sent)):
        raise InvalidRun(f"{way}: {source.sent} events were sent, {len(found)} were answered in one batch, or not in order")
    at = np.array([at_s for _, at_s in found[first:]])
    return at - sent.due(np.arange(sent.events))


def _event(_: int) -> dict[str, Any]:
    return {}


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite. The seed has no effect: events are counted."""
    scale = QUICK if quick else FULL
    made: dict[tuple[str, int], list[Latencies]] = {}
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        p.push("forward", "1")
        p.deploy("forward", "forward")
        spark = stack.enter_context(spark_of({"spark.udo.node": p.node_socket, **SETTINGS}))
        spark.sparkContext.setLogLevel("FATAL")  # a query that is stopped within a batch counts as an error
        contenders = ways(p)
        for turn in range(scale.rounds + 1):
            say(f"round {turn} of {scale.rounds}" if turn else "warming up")
            for rate in scale.rates:
                for name, call in contenders.items():
                    found = summary_ms(measure(spark, name, call, rate, scale.seconds if turn else 1.0))
                    if turn:
                        made.setdefault((name, rate), []).append(found)
    return Figures([Way(name, rate, medians(rounds, 2)) for (name, rate), rounds in made.items()], scale.seconds, scale.rounds, driver)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = [
        [way.way, f"{way.rate:,}", *(f"{ms:.2f}" for ms in (w.mean_ms, w.p50_ms, w.p99_ms, w.p999_ms, w.max_ms))]
        for way in f.ways
        for w in (way.latencies,)
    ]
    header = ["way", "events/s", "mean ms", "p50", "p99", "p99.9", "max"]
    remark = f"Open loop, medians of {f.rounds} rounds, each with all events of {f.seconds:g} s after {WARM_UP_S:g} s of warm-up."
    return [Section("Real-time mode: from an event to its answer", header, rows, remark)]
