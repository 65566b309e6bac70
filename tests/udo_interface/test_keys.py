"""Events have the same key if Spark's groupBy puts them into one group, and only then, in any time zone, before and after a restart."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.support.keyed_stream import MANIFEST, Stream
from tests.support.selection import long
from udo_interface import udo
from udo_protocol.errors import ManifestError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"n": n}
"""


def counting(kind: str) -> dict[str, Any]:
    return {"entry": "op:Count", "key": "k", "input": {"k": kind}, "output": {"n": "int64"}}


# An hour in autumn that clocks in Berlin show twice, an hour in spring that they skip, and an ordinary time.
TIMES = ("2024-10-27 00:30:00", "2024-10-27 01:30:00", "2024-03-31 01:30:00", "2024-03-31 02:30:00", "2024-11-26 12:00:00")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        long("double", "cast(x as double)"),
        long("float", "cast(x as float)"),
        ("timestamp[us, tz=Europe/Berlin]", "t"),
        long("timestamp[us, tz=UTC]", "t"),
        long("timestamp[us]", "t"),
        ("timestamp[us]", "cast(t as timestamp_ntz)"),
        long("decimal128(10, 2)", "cast(nanvl(x, 2.5D) as decimal(10, 2))"),
        long("date32[day]", "cast(t as date)"),
        long("binary", "cast(cast(x as string) as binary)"),
        long("bool", "x > 0"),
    ],
)
def test_events_of_one_key_are_those_that_group_by_takes_for_one(platform: Platform, spark: SparkSession, kind: str, values: str) -> None:
    name = platform.operator(COUNT, **counting(kind))
    times = ", ".join(f"timestamp'{t} UTC'" for t in TIMES)
    rows = f"select explode(array(0.0D, -0.0D, 1.5D, null, double('NaN'))) x, t from (select explode(array({times}, null)) t)"
    df = spark.sql(rows).union(spark.sql(rows)).selectExpr(f"{values} as k")
    wanted = Counter(n for row in df.groupBy("k").count().collect() for n in range(1, row["count"] + 1))
    for zone in ("UTC", "Europe/Berlin"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            answered = Counter(row.n for row in udo(name)(df, key="k").collect())
        finally:
            spark.conf.unset("spark.sql.session.timeZone")
        assert answered == wanted, zone


def test_a_wall_clock_as_a_key_is_the_same_key_in_another_time_zone(platform: Platform, spark: SparkSession, tmp_path: Path) -> None:
    source = COUNT.replace('{"n": n}', '{"id": event["id"], "k": event["k"], "n": n}').replace('event["k"]', 'str(event["k"])')
    columns = {"id": "int64", "k": "timestamp[us]"}
    name = platform.operator(source, entry="op:Count", key="k", input=columns, output={**columns, "k": "string", "n": "int64"})

    class Clocks(Stream):
        def source(self) -> Any:
            second = F.substring("k", 2, 9).cast("int")
            return super().source().withColumn("k", F.expr("timestamp_ntz'2024-03-31 02:30:00'") + F.make_dt_interval(secs=second))

        def check(self, files: int | None = None) -> None:
            second = dt.timedelta(seconds=1)
            first = dt.datetime(2024, 3, 31, 2, 30)
            self.rows = {e: [(i, f"k{(dt.datetime.fromisoformat(k) - first) // second}", n) for i, k, n in r] for e, r in self.rows.items()}
            super().check(files)

    stream = Clocks(spark, tmp_path, name)
    for zone in ("Europe/Berlin", "America/New_York"):
        stream.add()
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            stream.run()
        finally:
            spark.conf.unset("spark.sql.session.timeZone")
    stream.check()


@pytest.mark.parametrize("kind", ["struct<a: int64>", "list<int64>", "map<string, int64>", "duration[us]", "time64[us]"])
def test_what_cannot_be_a_key_is_refused_before_it_is_pushed(platform: Platform, kind: str) -> None:
    with pytest.raises(ManifestError, match=r"key: column 'k' is .*; expected numbers, text, .*name the fields as columns of their own"):
        platform.operator(COUNT, **counting(kind))


def test_a_column_of_the_name_that_key_groups_travel_in_is_refused_before_it_is_pushed(platform: Platform) -> None:
    with pytest.raises(ManifestError, match="input: '__udo_group' is the column in which the key groups of keyed events travel"):
        platform.operator(COUNT, **{**MANIFEST, "input": {"id": "int64", "k": "string", "__udo_group": "int32"}})


def test_a_version_with_another_type_of_key_is_refused_and_the_query_goes_on(
    platform: Platform, spark: SparkSession, tmp_path: Path
) -> None:
    columns = {"id": "int64", "k": "string"}
    source = COUNT.replace('{"n": n}', '{"id": event["id"], "k": event["k"], "n": n}')
    manifest = {"entry": "op:Count", "key": "id", "input": {**columns, "id": "int32"}, "output": {**columns, "n": "int64"}}
    name = platform.operator(source, **manifest)
    platform.push(source, name=name, version="2", **{**manifest, "input": columns})
    with pytest.raises(SchemaError, match="key: column 'id' is int32, in the new version int64, .* convert it inside of the operator"):
        platform.update(name, "2")
    df = spark.range(5).select(F.col("id").cast("int"), F.lit("k").alias("k"))
    assert [row.n for row in udo(name)(df.union(df), key="id").where("n > 1").collect()] == [2] * 5
