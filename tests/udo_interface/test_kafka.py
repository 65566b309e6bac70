"""Events from a Kafka topic and answers into one: live updates, restarts, added partitions, real-time mode, and a record's own columns."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.conftest import wait_until
from tests.support.kafka import Broker, connector, jars
from tests.support.keyed_stream import COUNT, MANIFEST
from tests.support.stream import OUT, VERSION, running
from udo_interface import udo
from udo_interface.spark import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.udo_interface.conftest import Platform

# The broker and the connector are fetched anew on a fresh machine.
pytestmark = pytest.mark.long
# Takes a record's value as it is.
LENGTH = """
from udo_runtime import Operator
class Length(Operator):
    def process(self, event, ctx):
        yield {"id": int(event["value"]), "length": len(event["value"])}
"""
KEYS = 7
# So that no epoch has all records of a test.
FEW = {"maxOffsetsPerTrigger": 75}


class Topics:
    """A broker's topics as a Spark session reads and writes them. The event `id` has the key `k<id % KEYS>` and the value `{"id": id}`."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path) -> None:
        self.spark, self.broker, self._directory = spark, broker, directory
        # The partitions of a topic are looked up again after this time; the default is five minutes.
        self._options = {"kafka.bootstrap.servers": broker.address, "kafka.metadata.max.age.ms": "500"}

    def send(self, topic: str, ids: range) -> None:
        """Write events, in order within each key."""
        key = F.concat(F.lit("k"), F.col("id") % KEYS).alias("key")
        value = F.to_json(F.struct("id")).alias("value")
        events = self.spark.range(ids.start, ids.stop, 1, 1).select(key, value)
        events.write.format("kafka").options(**self._options, topic=topic).save()

    def records(self, topic: str) -> DataFrame:
        """All records of a topic, as a batch."""
        return self.spark.read.format("kafka").options(**self._options, subscribe=topic).load()

    def stream(self, topic: str, **options: Any) -> DataFrame:
        """A stream of a topic from its first record on."""
        chosen = {**self._options, "subscribe": topic, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("kafka").options(**chosen).load()

    def write(self, answered: DataFrame, topic: str, **trigger: Any) -> StreamingQuery:
        """Start, or restart, a query that writes keys and answers to a topic."""
        body = F.to_json(F.struct(*[c for c in answered.columns if c != "key"])).alias("value")
        writer = answered.select("key", body).writeStream.format("kafka").options(**self._options, topic=topic)
        writer = writer.option("checkpointLocation", str(self._directory / topic))
        return (writer.outputMode("update").trigger(**trigger) if trigger else writer).start()

    def answers(self, topic: str) -> list[dict[str, Any]]:
        """The answers that a query has written, in order within each key; `key` is one of the fields."""
        found = sorted(self.records(topic).collect(), key=lambda r: (r.partition, r.offset))
        return [{"key": bytes(r.key).decode(), **json.loads(bytes(r.value))} for r in found]


def parsed(records: DataFrame, *kept: str) -> DataFrame:
    """The events in a topic's records."""
    return records.select(F.from_json(F.col("value").cast("string"), "id long").alias("event"), *kept).select("event.*", *kept)


@pytest.fixture(scope="session")
def kafka(spark: SparkSession) -> Iterator[Path]:
    """The folder of Kafka's jars, of which the session has the connector's until it ends: it looks for sources in all jars it has."""
    with tempfile.TemporaryDirectory(prefix="udo-kafka-") as scratch:
        folder = jars(Path(scratch))
        for jar in connector(folder):
            spark.sql(f"ADD JAR '{jar}'")
        yield folder


@pytest.fixture(scope="module")
def broker(kafka: Path) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="udo-broker-") as home:
        started = Broker(kafka, Path(home))
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture
def topics(spark: SparkSession, broker: Broker, tmp_path: Path) -> Topics:
    return Topics(spark, broker, tmp_path)


@pytest.mark.both_paths
def test_each_record_is_answered_once_in_order_over_a_live_update_added_partitions_and_a_restart(
    topics: Topics, platform: Platform, call_path: str
) -> None:
    name = platform.operator(VERSION.format(v=1), output=OUT)
    for v in (2, 3):
        platform.push(VERSION.format(v=v), name=name, version=str(v), output=OUT)
    source, answers = f"payments-{call_path}", f"answers-{call_path}"

    def start() -> StreamingQuery:
        return topics.write(udo(name, keep=["key", "partition"])(parsed(topics.stream(source, **FEW), "key", "partition")), answers)

    topics.send(source, range(300))
    with running(start()) as query:
        wait_until(lambda: not query.isActive or bool(query.recentProgress), 60, "the first of four micro-batches to end")
        assert platform.update(name, "2") == "done"
        query.processAllAvailable()
        topics.broker.partitions(source, 5)
        topics.send(source, range(300, 500))
        query.processAllAvailable()
    topics.send(source, range(500, 600))
    assert platform.update(name, "3") == "done"
    with running(start()) as query:
        query.processAllAvailable()
    found = topics.answers(answers)
    versions = [row["v"] for row in sorted(found, key=lambda r: r["id"])]
    assert [row["id"] for row in sorted(found, key=lambda r: r["id"])] == list(range(600))
    assert versions[300:] == [2] * 200 + [3] * 100 and set(versions[:300]) <= {1, 2} and 1 in versions
    assert {row["partition"] for row in found} == set(range(5))
    sent = {json.loads(r.value)["id"]: (bytes(r.key).decode(), r.partition) for r in topics.records(source).collect()}
    assert {row["id"]: (row["key"], row["partition"]) for row in found} == sent
    for key in {row["key"] for row in found}:
        of_key = [row for row in found if row["key"] == key and row["id"] < 300]  # sent while there were two partitions
        for column in ("id", "v"):
            assert [row[column] for row in of_key] == sorted(row[column] for row in of_key)


@pytest.mark.both_paths
def test_a_keyed_operator_counts_each_record_once_in_order_over_a_restart(topics: Topics, platform: Platform, call_path: str) -> None:
    name = platform.operator(COUNT, **MANIFEST)
    source = f"counted-{call_path}"
    rows: dict[int, list[Row]] = {}

    def run() -> None:
        events = parsed(topics.stream(source, **FEW), "key", "offset").withColumn("k", F.col("key").cast("string"))
        counted = udo(name, keep="offset")(events, key="k")
        writer = counted.writeStream.foreachBatch(lambda df, epoch: rows.__setitem__(epoch, df.collect()))
        with running(writer.option("checkpointLocation", str(topics._directory / source)).start()) as query:
            query.processAllAvailable()

    topics.send(source, range(150))
    run()
    topics.broker.partitions(source, 3)
    topics.send(source, range(150, 300))
    run()
    found = [row for epoch in sorted(rows) for row in rows[epoch]]
    assert len(rows) > 4 and sorted(row.id for row in found) == list(range(300))
    for key in range(KEYS):
        of_key = [row for row in found if row.id % KEYS == key]
        assert {row.k for row in of_key} == {f"k{key}"}
        assert [row.n for row in of_key] == list(range(1, len(of_key) + 1))
        assert [row.id for row in of_key] == sorted(row.id for row in of_key), "a key's records of an epoch are all in one partition"


@pytest.mark.parametrize("path", [settings.PYTHON, settings.JVM])
def test_a_batch_of_records_may_be_split_and_keeps_their_own_columns(topics: Topics, platform: Platform, path: str) -> None:
    """An operator takes the value as bytes; headers and times are kept, of types that operators do not have."""
    name = platform.operator(LENGTH, entry="op:Length", input={"value": "binary"}, output={"id": "int64", "length": "int64"})
    events = topics.spark.range(120).select(
        F.col("id").cast("string").alias("key"),
        F.col("id").cast("string").alias("value"),
        F.array(F.struct(F.lit("source").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))).alias("headers"),
    )
    events.write.format("kafka").options(**topics._options, topic=f"bytes-{path}", includeHeaders="true").save()
    records = topics.spark.read.format("kafka").options(
        **topics._options, subscribe=f"bytes-{path}", includeHeaders="true", minPartitions=6
    )
    kept = ["key", "headers", "timestamp", "partition", "offset"]
    answered = udo(name, keep=kept, path=path)(records.load())
    assert answered.rdd.getNumPartitions() == 6
    rows = answered.collect()
    assert sorted(row.id for row in rows) == list(range(120))
    for row in rows:
        text = str(row.id)
        assert (bytes(row.key).decode(), row.length) == (text, len(text))
        assert [(h.key, bytes(h.value).decode()) for h in row.headers] == [("source", text)]
    stored = {(r.partition, r.offset): (bytes(r.value).decode(), r.timestamp) for r in records.load().collect()}
    assert {(r.partition, r.offset): (str(r.id), r.timestamp) for r in rows} == stored


def test_in_real_time_mode_answers_reach_the_topic_before_the_batch_ends(topics: Topics, platform: Platform) -> None:
    """Two partitions take both of the session's cores, so Kafka's own programs write and read."""
    name = platform.operator(VERSION.format(v=1), output=OUT)
    platform.push(VERSION.format(v=2), name=name, version="2", output=OUT)
    topics.send("instants", range(1))  # a topic begins with its first record
    sent = 1
    topics.spark.conf.set(settings.REAL_TIME_CHECK, "false")
    called = udo(name, keep=["key", "partition"], path="jvm")(parsed(topics.stream("instants"), "key", "partition"))
    try:
        with (
            topics.broker.consumer("instant-answers") as file,
            topics.broker.producer("instants") as send,
            running(topics.write(called, "instant-answers", realTime="1 hour")) as query,
        ):
            for events in (0, 3, 500, 1, 200):
                if events == 1:
                    assert platform.update(name, "2") == "done"
                for i in range(sent, sent + events):
                    send(f"k{i % KEYS}", json.dumps({"id": i}))
                sent += events
                wait_until(lambda: not query.isActive or file.read_bytes().count(b"\n") >= sent, 60, f"{sent} answers")  # noqa: B023
            assert query.isActive and not query.recentProgress
            found = [(key, json.loads(value)) for key, value in (line.split("\t") for line in file.read_text().splitlines())]
    finally:
        topics.spark.conf.unset(settings.REAL_TIME_CHECK)
    assert [row["v"] for _, row in sorted(found, key=lambda r: r[1]["id"])] == [1] * 504 + [2] * 201
    assert {row["partition"] for _, row in found} == {0, 1}
    for key in {key for key, _ in found}:
        assert [row["id"] for k, row in found if k == key] == [i for i in range(sent) if f"k{i % KEYS}" == key]
