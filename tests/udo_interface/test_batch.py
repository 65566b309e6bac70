"""`udo(name)(df)` on batch DataFrames: real registry, node manager, operator processes and Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tests.conftest import wait_until
from tests.support.selection import long
from udo_interface import udo
from udo_protocol.errors import NotFound, SchemaError, Unavailable, UsageError
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import slot_stats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

DOUBLE = """
import pyarrow.compute as pc
from udo_runtime import operator
@operator
def run(batch):
    return {"id": batch.column("id"), "twice": pc.multiply(batch.column("id"), 2)}
"""
EVEN = """
import pyarrow.compute as pc
from udo_runtime import operator
@operator
def run(batch):
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))
"""
THROWS = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        if event["id"] == 1234:
            raise ValueError(f"cannot judge {event['id']}")
        yield event
"""
DIES = """
import os
from udo_runtime import operator
@operator
def run(batch):
    os._exit(7)
"""


@pytest.fixture
def hostile(platform: Platform) -> str:
    """An operator that gives answers which no honest one would give."""
    source = (Path(__file__).parents[2] / "benchmarks/operators/attack/attack.py").read_text("utf-8")
    return platform.operator(source, entry="op:Attack", input={"attack": "string", "arguments": "string"}, output={"result": "string"})


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


@pytest.mark.both_paths
def test_every_event_goes_through_the_operator_once(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(DOUBLE, output={"id": "int64", "twice": "int64"})
    answers = udo(name)(spark.range(0, 50_000, 1, 4))
    assert answers.columns == ["id", "twice"]
    count, total, off = answers.agg(F.count("*"), F.sum("id"), F.sum(F.abs(F.col("twice") - 2 * F.col("id")))).collect()[0]
    assert (count, total, off) == (50_000, sum(range(50_000)), 0)


@pytest.mark.both_paths
def test_an_operator_may_answer_fewer_events_and_order_is_kept_within_a_partition(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(EVEN)
    rows = udo(name, window=2)(spark.range(0, 30_000, 1, 1)).collect()
    assert [r.id for r in rows] == list(range(0, 30_000, 2))


@pytest.mark.both_paths
def test_columns_are_picked_by_name_and_widened_and_others_are_not_sent(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(input={"amount": "double", "id": "int64"}, output={"amount": "double", "id": "int64"})
    df = spark.range(3).select(F.lit("secret").alias("name"), F.col("id").cast("short"), F.col("id").cast("float").alias("amount"))
    assert [tuple(r) for r in udo(name)(df).orderBy("id").collect()] == [(0.0, 0), (1.0, 1), (2.0, 2)]


ODD = {"a.b": "int64", "c`d": "int64", "*": "int64", "e f": "int64"}


@pytest.mark.both_paths
def test_columns_may_have_any_names(spark: SparkSession, platform: Platform) -> None:
    df = spark.range(3).select(*(F.col("id").alias(n) for n in ODD))
    assert sorted(map(tuple, udo(platform.operator(input=ODD, output=ODD))(df).collect())) == [(n,) * 4 for n in range(3)]


def test_also_those_of_a_key_and_kept_ones(spark: SparkSession, platform: Platform) -> None:
    df = spark.range(3).select(*(F.col("id").alias(n) for n in ODD), F.col("id").alias("kept.too"))
    stateless = platform.operator(input=ODD, output=ODD)
    assert sorted(map(tuple, udo(stateless, keep=["kept.too"])(df).collect())) == [(n,) * 5 for n in range(3)]
    source = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {**event, "n.n": ctx.state["n"]}
"""
    keyed = platform.operator(source, entry="op:Count", key=["a.b"], input=ODD, output={**ODD, "n.n": "int64"})
    answers = udo(keyed, key="a.b")(df.union(df))
    assert sorted(map(tuple, answers.collect())) == [(*(i,) * 4, n) for i in range(3) for n in (1, 2)]


def test_timestamps_keep_their_instant_in_any_session_zone(spark: SparkSession, platform: Platform) -> None:
    columns = {"at": "timestamp[us]", "clock": "timestamp[us]", "ms": "timestamp[ms, tz=UTC]"}
    name = platform.operator(
        "import pyarrow as pa\nfrom udo_runtime import operator\n@operator\ndef run(b):\n"
        "    return {'at': b.column('at'), 'clock': b.column('clock'), 'ms': b.column('at').cast(pa.timestamp('ms', tz='UTC'))}\n",
        input={"at": "timestamp[us]", "clock": "timestamp[us]"},
        output=columns,
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.sql("select timestamp_micros(1700000000000000) as at, timestamp_ntz'2024-02-03 04:05:06' as clock")
        answers = udo(name)(df)
        assert [t for _, t in answers.dtypes] == ["timestamp", "timestamp_ntz", "timestamp"]
        row = answers.selectExpr("unix_micros(at) as at", "clock", "unix_millis(ms) as ms").collect()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert tuple(row) == (1700000000000000, dt.datetime(2024, 2, 3, 4, 5, 6), 1700000000000)


@pytest.mark.both_paths
def test_kept_columns_stay_with_their_events(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(DOUBLE, output={"twice": "int64"})
    df = spark.range(0, 25_000, 1, 2).select("id", F.concat(F.lit("card "), F.col("id")).alias("card"), F.struct("id").alias("nested"))
    answers = udo(name, keep=["card", "id", "nested"])(df)
    assert answers.columns == ["twice", "card", "id", "nested"]
    wrong = answers.where("twice != 2 * id or card != concat('card ', id) or nested.id != id").count()
    assert (answers.count(), wrong) == (25_000, 0)


@pytest.mark.both_paths
def test_keeping_columns_needs_one_answer_per_event(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(EVEN)
    df = spark.range(0, 10, 1, 1).withColumn("x", F.lit(1))
    with pytest.raises(PySparkException) as caught:
        udo(name)(df, keep="x").collect()
    assert "keep= needs exactly one answer per event, but 10 events got 5 answers" in message(caught)


@pytest.mark.long
@pytest.mark.both_paths
def test_a_limit_downstream_closes_the_lane(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator()
    assert len(udo(name)(spark.range(0, 2_000_000, 1, 1)).limit(5).collect()) == 5
    assert udo(name)(spark.range(0, 10, 1, 1)).count() == 10
    (slot,) = platform.slots(name)
    with contextlib.closing(platform.queue()) as queue:
        wait_until(lambda: slot_stats(queue, SlotKeys(name, slot.slot)).lanes == 0, 10, "the lane to be closed")


@pytest.mark.both_paths
def test_empty_partitions_and_empty_dataframes_give_empty_answers(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(DOUBLE, output={"id": "int64", "twice": "int64"})
    assert udo(name)(spark.range(0)).collect() == []
    assert udo(name)(spark.range(0, 1, 1, 8)).count() == 1


def test_a_misfit_is_told_at_the_call_with_all_columns_and_near_names(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(input={"card_id": "int64", "amount": "double"}, output={"amount": "double"})
    df = spark.range(1).select(F.col("id").alias("cardId"), F.lit("x").alias("amount"))
    with pytest.raises(SchemaError) as caught:
        udo(name)(df)
    assert "column 'card_id' (int64) is missing; near names: cardId" in message(caught)
    assert "column 'amount': expected double, got string" in message(caught)
    assert f"{name}@1" in message(caught)


def test_an_unknown_operator_is_told_at_the_call(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator()
    with pytest.raises(NotFound, match=name):
        udo(name + "x")(spark.range(1))
    with pytest.raises(NotFound, match="9"):
        udo(f"{name}@9")(spark.range(1))


def test_a_registry_that_is_away_is_told_at_the_call_with_its_address(spark: SparkSession) -> None:
    call = udo("x", registry="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9.*udo up"):
        call(spark.range(1))


@pytest.mark.both_paths
def test_without_a_node_manager_the_task_says_where_it_looked(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    name = platform.operator()
    spark.conf.set("spark.udo.node", str(tmp_path / "none.sock"))
    spark.conf.set("spark.udo.nodeWaitS", "1")
    try:
        with pytest.raises(PySparkException) as caught:
            udo(name)(spark.range(1)).collect()
    finally:
        spark.conf.set("spark.udo.node", platform.node)
        spark.conf.unset("spark.udo.nodeWaitS")
    assert "none.sock" in message(caught) and "udo up" in message(caught)


@pytest.mark.both_paths
def test_an_operator_that_throws_shows_its_traceback_and_the_event(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(THROWS)
    with pytest.raises(PySparkException) as caught:
        udo(name)(spark.range(0, 5000, 1, 1)).collect()
    text = message(caught)
    for part in (
        f"{name}@1",
        "node n1",
        f"slot udo:{name}:0",
        "epoch 0",
        "cannot judge 1234",
        '"id": 1234',
        'raise ValueError(f"cannot judge',
        "op.py",
    ):
        assert part in text, text


@pytest.mark.both_paths
def test_the_operators_own_message_comes_first_and_where_it_was_last(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(THROWS)
    with pytest.raises(PySparkException) as caught:
        udo(name)(spark.range(0, 5000, 1, 1)).collect()
    text = message(caught)
    error = text.index("OperatorError: ValueError: cannot judge 1234")
    assert error < text.index('The offending event: {"id": 1234}') < text.index("op.py") < text.index("slot udo:")
    assert "lane.py" not in text, "frames of this project's own stand in front of the message"


def test_a_pandas_dataframe_is_refused_by_that_name(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"expects a Spark DataFrame, got a pandas DataFrame.*spark\.createDataFrame"):
        udo("anything")(pd.DataFrame({"a": [1]}))  # type: ignore[arg-type]


@pytest.mark.both_paths
def test_an_operator_that_dies_on_its_input_fails_the_query_with_the_reason(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(DIES)
    with pytest.raises(PySparkException) as caught:
        udo(name)(spark.range(0, 5, 1, 1)).collect()
    assert f"{name}@1" in message(caught)
    assert "status 7" in message(caught) or "code 7" in message(caught), message(caught)


@pytest.mark.both_paths
@pytest.mark.parametrize(
    ("attack", "arguments", "why"),
    [
        long("text_beyond", {"end": 1 << 30}, "answered with a malformed frame"),
        ("many_rows", {"rows": 100_000_000}, "answered with a malformed frame"),
        long("compressed_bomb", {"mebibytes": 128}, "answered with a malformed frame"),
        long("giant_header", {"mebibytes": 64}, "a frame header of"),
        long("giant_error", {"mebibytes": 64}, "characters cut"),
    ],
)
def test_an_answer_made_to_harm_its_caller_fails_the_query_with_the_reason_and_no_worker_dies(
    spark: SparkSession, hostile: str, attack: str, arguments: dict[str, int], why: str, call_path: str
) -> None:
    df = spark.createDataFrame([(attack, json.dumps(arguments))], "attack string, arguments string").coalesce(1)
    by_rdd = [lambda: df.rdd.mapPartitions(udo(hostile).map_partitions).collect()] if call_path == "python" else []
    for rows in (lambda: udo(hostile)(df).collect(), *by_rdd):
        with pytest.raises(Exception) as caught:
            rows()
        said = str(caught.value)
        assert f"{hostile}@1" in said and why in said, said[:2000]
        assert "exited unexpectedly" not in said and len(said) < 1 << 20


@pytest.mark.both_paths
def test_an_operator_that_cannot_be_loaded_fails_the_query_with_its_traceback(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator("import no_such_module\n")
    with pytest.raises(PySparkException) as caught:
        udo(name)(spark.range(0, 5, 1, 1)).collect()
    assert "no_such_module" in message(caught) and "Traceback" in message(caught)


@pytest.mark.both_paths
def test_a_version_is_pinned_by_name_while_the_deployment_moves_on(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(DOUBLE, output={"twice": "int64"})
    platform.push(DOUBLE.replace(", 2)", ", 20)"), name=name, version="2", output={"twice": "int64"})
    assert platform.update(name, "2") == "done"
    digest = platform.api.version(name, "1")["digest"]
    df = spark.range(1, 2, 1, 1)
    assert [udo(n)(df).collect()[0].twice for n in (name, f"{name}@1", f"{name}@{digest}", f"{name}@2")] == [20, 2, 2, 20]


def test_options_that_make_no_sense_are_refused_at_once(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator()
    df = spark.range(1)
    with pytest.raises(UsageError, match="keeps no state; call it without key="):
        udo(name, key="id")(df)
    with pytest.raises(UsageError, match="pin= expects 'epoch'"):
        udo(name, pin="1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="window= expects"):
        udo(name)(df, window=0)
    with pytest.raises(UsageError, match="unknown option color"):
        udo(name)(df, color=1)
    with pytest.raises(SchemaError, match="no such column"):
        udo(name, keep=["nothing"])(df)
    with pytest.raises(SchemaError, match="itself answers with id"):
        udo(name, keep=["id"])(df)
    with pytest.raises(UsageError, match="map_partitions"):
        udo(name)(df.rdd)  # type: ignore[arg-type]
