"""Operators as a table function of Spark SQL: the same answers and promises as udo(name)(df), batch and streaming."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.support.keyed_stream import COUNT, MANIFEST, Stream, key_of
from udo_interface import register, udo
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long
DOUBLE = """
import pyarrow.compute as pc
from udo_runtime import operator
@operator
def run(batch):
    return {"id": batch.column("id"), "twice": pc.multiply(batch.column("id"), 2)}
"""
ROWS = 300


@pytest.fixture(scope="module")
def double(platform: Platform) -> str:
    return platform.operator(DOUBLE, output={"id": "int64", "twice": "int64"})


@pytest.fixture(scope="module")
def count(platform: Platform) -> str:
    return platform.operator(COUNT, **MANIFEST)


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the function, and a view `tx` of ROWS events."""
    register(spark)
    spark.range(ROWS).selectExpr("id", "concat('k', id * id % 17) AS k", "'EUR' AS currency").createOrReplaceTempView("tx")
    yield spark
    for view in ("tx", "scored", "events"):
        spark.catalog.dropTempView(view)


@pytest.mark.short
def test_a_select_from_an_operator_answers_as_the_call_on_a_dataframe(sql: SparkSession, double: str) -> None:
    answered = sql.sql(f"SELECT * FROM udo('{double}', TABLE(tx)) WHERE id < 10 ORDER BY id")
    assert [tuple(r) for r in answered.collect()] == [(i, 2 * i) for i in range(10)]
    plan = answered._jdf.queryExecution().executedPlan().toString()
    assert "in the JVM" in plan and "BatchEvalPythonUDTF" not in plan
    joined = sql.sql(
        f"SELECT count(*) AS n FROM tx JOIN udo('{double}', TABLE(SELECT id FROM tx WHERE id % 2 = 0)) AS a ON a.twice = tx.id"
    )
    assert joined.collect()[0].n == len([i for i in range(0, ROWS, 2) if 2 * i < ROWS])


def test_the_calls_options_are_named_arguments(sql: SparkSession, double: str) -> None:
    call = f"udo('{double}@1', TABLE(tx), keep => array('currency', 'k'), pin => 'epoch', window => 2)"
    (row,) = sql.sql(f"SELECT * FROM {call} WHERE id = 5").collect()
    assert row.asDict() == {"id": 5, "twice": 10, "currency": "EUR", "k": "k8"}
    assert sql.sql(f"SELECT * FROM udo('{double}', TABLE(tx), keep => 'k')").columns == ["id", "twice", "k"]


def test_the_function_may_have_another_name(spark: SparkSession, sql: SparkSession, double: str) -> None:
    register(spark, "operator_of_mine")
    assert spark.sql(f"SELECT * FROM operator_of_mine('{double}', TABLE(tx))").count() == ROWS


def test_a_keyed_operator_takes_partition_by(sql: SparkSession, count: str) -> None:
    for _ in range(2):
        rows = sql.sql(f"SELECT k, max(n) AS n FROM udo('{count}', TABLE(tx) PARTITION BY k) GROUP BY k").collect()
        assert {r.k: r.n for r in rows} == Counter(key_of(i) for i in range(ROWS))


def test_order_by_is_the_order_of_each_keys_events(sql: SparkSession, count: str) -> None:
    rows = sql.sql(f"SELECT * FROM udo('{count}', TABLE(tx) PARTITION BY k ORDER BY id DESC)").collect()
    assert len(rows) == ROWS
    for key in {r.k for r in rows}:
        assert [r.id for r in sorted(rows, key=lambda r: r.n) if r.k == key] == sorted((r.id for r in rows if r.k == key), reverse=True)


def test_order_by_takes_columns_whose_names_have_a_dot(platform: Platform, sql: SparkSession) -> None:
    source = COUNT.replace('event["id"]', 'event["a.b"]').replace('"id":', '"a.b":')
    columns = {"a.b": "int64", "k": "string"}
    name = platform.operator(source, **{**MANIFEST, "input": columns, "output": {**columns, "n": "int64"}})
    sql.range(5).selectExpr("id as `a.b`", "'x' k", "-id as at").createOrReplaceTempView("dotted")
    rows = sql.sql(f"SELECT * FROM udo('{name}', TABLE(dotted) PARTITION BY k ORDER BY at)").collect()
    assert sorted((r["a.b"], r.n) for r in rows) == [(4 - n, n + 1) for n in range(4, -1, -1)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "udo('COUNT', TABLE(tx))",
            r"keeps state by k; write udo\('COUNT', TABLE\(...\) PARTITION BY k\), got neither key nor PARTITION BY",
        ),
        ("udo('COUNT', TABLE(tx) PARTITION BY id)", r"PARTITION BY k\), got PARTITION BY id"),
        ("udo('COUNT', TABLE(tx) WITH SINGLE PARTITION)", r"PARTITION BY k\), got WITH SINGLE PARTITION"),
        ("udo('COUNT', TABLE(tx) PARTITION BY upper(k))", r"takes columns of the table, got .*make it a column inside of TABLE"),
        ("udo('COUNT', TABLE(tx) PARTITION BY k, pin => 'epoch')", "key= and pin= exclude each other"),
        ("udo('COUNT', TABLE(tx) PARTITION BY k, store => '/nowhere')", "store= keeps the state of a streaming query"),
        ("udo('DOUBLE', TABLE(tx) PARTITION BY k)", "keeps no state.*without PARTITION BY"),
        ("udo('DOUBLE', TABLE(tx) WITH SINGLE PARTITION)", "keeps no state.*without WITH SINGLE PARTITION"),
        ("udo('DOUBLE', TABLE(SELECT k FROM tx))", r"column 'id' \(int64\) is missing"),
        ("udo('nobody', TABLE(tx))", "NotFound: .*nobody"),
        ("udo('DOUBLE', TABLE(tx), key => 'k')", "unknown option key; expected keep, uid"),
        ("udo('DOUBLE', TABLE(tx), window => 1.5)", "window => expects a text, a number or an array of texts that is constant, got 1.5"),
        ("udo('DOUBLE', 1)", "the second argument is a table, got 1"),
        ("udo(TABLE(tx))", r"expected udo\('deployment', TABLE"),
        ("tx AS t, LATERAL udo('DOUBLE', TABLE(SELECT t.id))", "."),
    ],
)
def test_what_cannot_be_answered_is_refused_where_the_statement_is_analysed(
    sql: SparkSession, count: str, double: str, call: str, said: str
) -> None:
    names = {"COUNT": count, "DOUBLE": double}
    for placeholder, name in names.items():
        call, said = call.replace(placeholder, name), said.replace(placeholder, name)
    with pytest.raises(AnalysisException, match=f"(?s){said}") as refused:
        sql.sql(f"SELECT * FROM {call}")
    assert "Traceback" not in str(refused.value) and "Py4J" not in str(refused.value)


class Statement(Stream):
    """The keyed stream of files, called through SQL."""

    def start(self, after: Any = None, each: Any = None) -> Any:
        self.source().createOrReplaceTempView("events")
        counted = self._spark.sql(f"SELECT * FROM udo('{self._operator}', TABLE(events) PARTITION BY k)")
        writer = counted.writeStream.foreachBatch(each or self.gather)
        return writer.option("checkpointLocation", str(self.directory / "ckpt")).start()


def test_a_stream_in_sql_keeps_its_state_over_epochs_and_a_restart(sql: SparkSession, count: str, tmp_path: Path) -> None:
    stream = Statement(sql, tmp_path, count)
    for _ in range(2):
        stream.add()
    stream.run()
    stream.add()
    stream.run()
    stream.check()


def test_a_stream_that_tracks_its_progress_asynchronously_is_refused_in_sql_too(
    sql: SparkSession, count: str, platform: Platform, tmp_path: Path
) -> None:
    stream = Statement(sql, tmp_path, count)
    stream.add()
    stream.source().createOrReplaceTempView("events")
    counted = sql.sql(f"SELECT * FROM udo('{count}', TABLE(events) PARTITION BY k)")
    options = {"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}
    query = counted.writeStream.format("noop").options(**options).option("checkpointLocation", str(tmp_path / "ckpt")).start()
    try:
        with pytest.raises(PySparkException, match="keeps state, and this query was started with asyncProgressTrackingEnabled"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert str(query.id) not in [s.session for s in connect_node(platform.node).sessions(count).sessions]


def test_a_streams_order_is_not_sorted_behind_sparks_back(sql: SparkSession, count: str, tmp_path: Path) -> None:
    Statement(sql, tmp_path, count).source().createOrReplaceTempView("events")
    with pytest.raises(AnalysisException, match="ORDER BY orders the events of each key of a batch"):
        sql.sql(f"SELECT * FROM udo('{count}', TABLE(events) PARTITION BY k ORDER BY id)")


def test_a_temporary_view_names_an_operators_answers_batch_and_streaming_and_a_permanent_one_does_not(
    sql: SparkSession, double: str, count: str, tmp_path: Path
) -> None:
    sql.sql(f"CREATE OR REPLACE TEMPORARY VIEW scored AS SELECT * FROM udo('{double}', TABLE(tx))")
    assert sql.sql("SELECT sum(twice) AS s FROM scored").collect()[0].s == ROWS * (ROWS - 1)
    with pytest.raises(AnalysisException, match="temporary object `udo` of the type FUNCTION"):
        sql.sql(f"CREATE VIEW permanent AS SELECT * FROM udo('{double}', TABLE(SELECT id FROM range(3)))")
    stream = Stream(sql, tmp_path, count)
    udo(count)(stream.source(), key="k").createOrReplaceTempView("scored")
    for _ in range(2):
        stream.add()
    query = sql.sql("SELECT id, k, n FROM scored").writeStream.foreachBatch(stream.gather)
    query.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    stream.check()


def test_sql_inside_of_foreach_batch_is_a_call_of_its_query(sql: SparkSession, count: str, tmp_path: Path) -> None:
    stream = Stream(sql, tmp_path, count)
    for _ in range(3):
        stream.add()

    def each(df: DataFrame, epoch: int) -> None:
        df.createOrReplaceTempView("events")
        answered = df.sparkSession.sql(f"SELECT * FROM udo('{count}', TABLE(events) PARTITION BY k)")
        stream.rows[epoch] = [tuple(r) for r in answered.collect()]  # type: ignore[misc]

    query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "ckpt"))
    query.trigger(availableNow=True).start().awaitTermination()
    stream.check()
