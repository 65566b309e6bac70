"""Values reach an operator, and its answers reach Spark, unchanged: fields match by name at every depth, and nothing changes silently."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from tests.support.plans import configured
from tests.support.selection import long
from udo_interface import connect, udo
from udo_protocol.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

BY_NAME = """
import pyarrow as pa, pyarrow.compute as pc
from udo_runtime import operator
@operator
def run(batch):
    one, several = batch.column("s"), batch.column("l").flatten()
    by_key = batch.column("m").values.field(1)
    places = lambda name: ((one, name), (several, name), (by_key, ["n", name]))
    return {name: [[pc.struct_field(c, at).to_pylist()[0] for c, at in places(name)]] for name in "ab"}
"""
STRUCTS = {
    "input": {
        "s": "struct<a: int64, b: int64>",
        "l": "list<struct<a: int64, b: int64>>",
        "m": "map<string, struct<n: struct<a: int64, b: int64>>>",
    },
    "output": {"a": "list<int64>", "b": "list<int64>"},
}
MAPS = """
from udo_runtime import Operator
class Maps(Operator):
    def process(self, event, ctx):
        m = event["m"] and {k: v + 1 for k, v in event["m"].items()}
        yield {"m": m, "l": [{k: v + 1 for k, v in one.items()} for one in event["l"]], "s": {"m": {**event["s"]["m"], "new": 0}}}
"""
MAPPED = {"m": "map<string, int64>", "l": "list<map<int64, int64>>", "s": "struct<m: map<string, int64>>"}
FORWARD = """
from udo_runtime import operator
@operator
def run(batch):
    return batch
"""
RENAMED = FORWARD.replace("batch\n", '{"id": batch.column("a")}\n')


def of_dataframe(name: str, df: DataFrame) -> list[Row]:
    return udo(name)(df).collect()


def of_rdd(name: str, df: DataFrame) -> list[Row]:
    return df.rdd.mapPartitions(udo(name).map_partitions).collect()


@pytest.mark.parametrize("call", [of_dataframe, of_rdd])
def test_fields_of_structs_go_by_name_at_every_depth(platform: Platform, spark: SparkSession, call: Callable[..., list[Row]]) -> None:
    name = platform.operator(BY_NAME, **STRUCTS)
    df = spark.sql("select named_struct('b', 2L, 'a', 1L) s, array(named_struct('b', 2L, 'a', 1L)) l, "
                   "map('k', named_struct('n', named_struct('b', 2L, 'a', 1L))) m")  # fmt: skip
    assert [tuple(r) for r in call(name, df)] == [([1, 1, 1], [2, 2, 2])]


def test_a_struct_in_an_rdd_that_lacks_a_field_is_told(platform: Platform, spark: SparkSession) -> None:
    name = platform.operator(FORWARD, input={"s": "struct<a: int64, b: int64>"}, output={"s": "struct<a: int64, b: int64>"})
    df = spark.sql("select named_struct('b', 2L, 'c', 1L) s")
    with pytest.raises(PySparkException, match="column 's' expects struct<.*: a struct in it has no field 'a'"):
        of_rdd(name, df)


@pytest.mark.parametrize("way", ["in its engine", long("process")])
def test_maps_are_dicts_wherever_they_are(platform: Platform, spark: SparkSession, way: str) -> None:
    own = {"isolation": way} if way == "process" else {}
    name = platform.operator(MAPS, entry="op:Maps", input=MAPPED, output=MAPPED, **own)
    df = spark.sql("select map('a', 1L) m, array(map(7L, 1L)) l, named_struct('m', map('x', 1L)) s "
                   "union all select null, array(), named_struct('m', map())")  # fmt: skip
    expected = [({"a": 2}, [{7: 2}], {"m": {"x": 1, "new": 0}}), (None, [], {"m": {"new": 0}})]

    def plain(rows: list[Row]) -> list[Any]:
        return sorted(((r.m, r.l, r.s.asDict() if isinstance(r.s, Row) else r.s) for r in rows), key=lambda r: r[0] is None)

    assert plain(of_dataframe(name, df)) == plain(of_rdd(name, df)) == expected
    got: list[Any] = []
    with connect(name, node=platform.node) as client:
        client.add_listener(got.append)
        client.send({"m": {"a": 1}, "l": [{7: 1}], "s": {"m": {"x": 1}}})
    assert got == [{"m": {"a": 2}, "l": [{7: 2}], "s": {"m": {"x": 1, "new": 0}}}]


@pytest.mark.long
@pytest.mark.parametrize("year", [1, long(9999)])
@pytest.mark.parametrize("call", [of_dataframe, long(of_rdd)])
def test_a_time_that_nanoseconds_cannot_hold_is_refused_by_its_column(
    platform: Platform, spark: SparkSession, call: Callable[..., list[Row]], year: int
) -> None:
    name = platform.operator(FORWARD, input={"t": "timestamp[ns]"}, output={"t": "timestamp[ns]"})
    df = spark.createDataFrame([(dt.datetime(2024, 1, 1),), (dt.datetime(year, 12, 31),)], "t timestamp_ntz")
    with pytest.raises(PySparkException, match="column 't'"):
        call(name, df)
    assert [r.t.year for r in call(name, df.limit(1))] == [2024]


@pytest.mark.long
@pytest.mark.parametrize("sensitive", ["true", "false"])
@pytest.mark.parametrize("path", ["python", long("jvm")])
def test_columns_that_differ_by_case_alone_are_told_apart_or_refused(
    platform: Platform, spark: SparkSession, path: str, sensitive: str
) -> None:
    name = platform.operator(FORWARD)
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        df = spark.range(2).selectExpr("id", "id + 10 ID", "id + 20 x", "id + 30 X")
    with configured(spark, {"spark.sql.caseSensitive": sensitive}):
        kept: dict[str, Any] = {} if path == "jvm" else {"keep": "ID"}
        if sensitive == "true":
            rows = udo(name)(df, path=path, **kept).collect()
            assert sorted(tuple(r) for r in rows) == [(i, i + 10)[: 1 + len(kept)] for i in range(2)]
            return
        with pytest.raises(SchemaError, match="columns id, ID of the DataFrame .* spark.sql.caseSensitive"):
            udo(name)(df, path=path, **kept)
        lower = df.toDF("id", "other", "x", "X")
        assert udo(name)(lower, path=path).count() == 2, "what is not asked for may be as it likes"
        answering = platform.operator(RENAMED, input={"a": "int64"}, output={"id": "int64"})
        with pytest.raises(SchemaError, match="itself answers with id"):
            udo(answering)(spark.range(2).selectExpr("id a", "id ID"), keep="ID")
