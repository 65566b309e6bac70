"""`rdd.mapPartitions(udo(name).map_partitions)`: Rows in, Rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from tests.support.selection import long
from udo_interface import udo
from udo_protocol.errors import NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

TWICE = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        yield {"id": event["id"], "twice": None if event["id"] is None else event["id"] * 2.0}
"""


@pytest.fixture(scope="module")
def twice(platform: Platform) -> str:
    return platform.operator(TWICE, output={"id": "int64", "twice": "double"})


def test_rows_come_back_as_rows_in_order(spark: SparkSession, twice: str) -> None:
    rdd = spark.sparkContext.parallelize([Row(name="x", id=i) for i in range(25_000)], 2)
    rows = rdd.mapPartitions(udo(twice).map_partitions).collect()
    assert rows[3] == Row(id=3, twice=6.0)
    assert [r.id for r in rows] == list(range(25_000))


def test_dicts_and_nulls_are_taken_and_columns_kept(spark: SparkSession, twice: str) -> None:
    rdd = spark.sparkContext.parallelize([{"id": 1, "who": "a"}, {"id": None, "who": "b"}], 1)
    rows = rdd.mapPartitions(udo(twice, keep="who").map_partitions).collect()
    assert rows == [Row(id=1, twice=2.0, who="a"), Row(id=None, twice=None, who="b")]


def test_empty_partitions_answer_nothing(spark: SparkSession, twice: str) -> None:
    assert spark.sparkContext.parallelize([Row(id=1)], 4).mapPartitions(udo(twice).map_partitions).count() == 1


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row(x=1)], "rows lack id; they have x"),
        long([Row(id="seven")], "column 'id' expects int64"),
        long([Row(id=1), Row(other=2)], "differ in their fields"),
        ([(1, 2)], "takes pyspark.sql.Row or dict, got tuple"),
        long([{"id": 1}, {"x": 2}], "not every row has all of id"),
    ],
)
def test_rows_that_do_not_fit_are_told_with_what_was_expected(spark: SparkSession, twice: str, rows: list[Row], expected: str) -> None:
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:  # the latter from Spark 4.0
        spark.sparkContext.parallelize(rows, 1).mapPartitions(udo(twice).map_partitions).collect()
    assert expected in str(caught.value)


def test_an_unknown_operator_is_told_before_any_task_starts(spark: SparkSession) -> None:
    with pytest.raises(NotFound):
        _ = udo("no-such-operator").map_partitions
