"""keep= with columns of any type: each is unchanged after the call, including whether it can be null, or the call is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.support.selection import long
from tests.udo_interface.conftest import Platform
from udo_interface import udo
from udo_interface.spark.settings import VALIDATED
from udo_protocol.errors import SchemaError

FORWARD = """
from udo_runtime import Operator
class Forward(Operator):
    def process(self, event, ctx):
        yield {"b": event["a"]}
"""
IO: dict[str, Any] = {"entry": "op:Forward", "input": {"a": "int64"}, "output": {"b": "int64"}}
# Columns that cannot be null, whose types can be told from their batches.
TOLD = {
    "whole": "1",
    "nested": "named_struct('p', 1, 'q', array(1, 2), 'r', map('a', 1S))",
    "short": "cast('a' as char(3))",
    "at": "timestamp'2020-01-01 00:00:00'",
    "clock": "timestamp_ntz'2020-01-01 00:00:00'",
    "took": "interval '1 02:03:04.5' day to second",
    "bytes": "X'00ff'",
    "price": "cast(1.5 as decimal(10, 2))",
    "doc": """parse_json('{"a": 1}')""",
    "`dotted.name`": "2L",
}
UNTOLD = {
    "text": "'a' collate UTF8_LCASE",
    "texts": "array('a' collate UTF8_LCASE)",
    "by_text": "map('a' collate UTF8_LCASE, 1)",
    "days": "interval '1' day",
    "inside": "named_struct('p', interval '1' hour)",
}
# Types of Spark 4.1 and later; Spark 4.0 has none of them.
LATER = {"of_day": "time'10:00:00'", "place": "st_geomfromwkb(X'0101000000000000000000f03f0000000000000040')"}


def columns(spark: SparkSession, *, untold: bool) -> DataFrame:
    from pyspark import __version__

    later = LATER if tuple(map(int, __version__.split(".")[:2])) >= (4, 1) else {}
    of = TOLD | later | (UNTOLD if untold else {})
    df = spark.range(3).selectExpr("id a", *(f"{value} {name}" for name, value in of.items()), "nullif(id, 1) maybe")
    if not untold:
        return df
    vector = T.StructType([T.StructField("n", T.LongType(), False), T.StructField("v", VectorUDT(), False)])
    vectors = spark.createDataFrame([(n, Vectors.dense([1.0, n])) for n in range(3)], vector)
    return df.join(vectors, df.a == vectors.n).drop("n")


@pytest.fixture
def validated(spark: SparkSession) -> Any:
    yield lambda on: spark.conf.set(VALIDATED, on)
    spark.conf.unset(VALIDATED)


@pytest.mark.both_paths
@pytest.mark.parametrize("keyed", [False, True], ids=["stateless", "keyed"])
@pytest.mark.parametrize("on", [True, long(False)], ids=["validated", "as it is"])
def test_a_kept_column_of_any_type_is_what_it_was(spark: SparkSession, platform: Platform, validated: Any, on: bool, keyed: bool) -> None:
    validated(on)
    called = udo(platform.operator(FORWARD, **IO, **({"key": ["a"]} if keyed else {})), **({"key": "a"} if keyed else {}))
    df = columns(spark, untold=not on)
    names = [n for n in df.columns if n != "a"]
    given = df.selectExpr("a b", *(f"`{n}`" for n in names))
    answers = called(df, keep=names)
    assert {f.name: f for f in answers.schema}.pop("maybe").nullable
    assert [f for f in answers.schema if f.name != "b"] == [f for f in given.schema if f.name != "b"]
    assert sorted(map(str, answers.collect())) == sorted(map(str, given.collect()))


def test_what_the_batches_of_a_column_do_not_tell_is_refused_where_spark_asks(
    spark: SparkSession, platform: Platform, validated: Any
) -> None:
    validated(True)
    called, df = udo(platform.operator(FORWARD, **IO), path="python"), columns(spark, untold=True)
    for name in [*UNTOLD, "v"]:
        with pytest.raises(SchemaError, match=f"keep='{name}': {VALIDATED} is true, and the batches .* do not tell .* or cast the column"):
            called(df, keep=name)
    cast = called(df.selectExpr("a", "cast(days as interval day to second) days"), keep="days")
    assert [row.days.days for row in cast.collect()] == [1, 1, 1]
    assert [row.days for row in called(df, keep="days", path="jvm").select(F.col("days").cast("int").alias("days")).collect()] == [1, 1, 1]


def test_a_type_that_pyspark_sends_to_no_worker_is_kept_in_the_jvm_and_refused_elsewhere(spark: SparkSession, platform: Platform) -> None:
    operator = platform.operator(FORWARD, **IO)
    df = spark.range(3).selectExpr("id a", "interval '1-2' year to month span", "array(make_interval(1, 2, 3, 4)) spans")
    for name, unsent in {"span": "interval year to month", "spans": "interval"}.items():
        with pytest.raises(SchemaError, match=f"keep='{name}': PySpark sends no column of type {unsent} to .* Cast .*path='jvm'"):
            udo(operator, path="python")(df, keep=name)
    kept = udo(operator, path="jvm")(df, keep=["span", "spans"])
    told = [F.col("span").cast("string").alias("span"), F.col("spans")[0].cast("string").alias("first")]
    assert kept.select(*told).collect() == df.select(*told).collect()
