"""The JVM path takes part in the code that Spark generates: whatever the plan below a call is, the operator gets its rows, in order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.conftest import require
from tests.support.spark_rows import KINDS, arrow_of, rows_of, schema_of
from udo_interface import udo
from udo_interface.spark import jar
from udo_protocol.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
WHOLE_STAGE = "spark.sql.codegen.wholeStage"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
PLAIN = [kind for kind in KINDS if not kind.startswith(("decimal", "list"))]
# The number of rows of each frame.
COUNTS = """
import pyarrow as pa
from udo_runtime import operator
@operator
def run(b):
    return pa.record_batch({"n": [b.num_rows]})
"""
EVENT = {"n": "int64", "s": "string"}

Plan = Callable[["SparkSession", "DataFrame", Path], "DataFrame"]


@pytest.fixture(autouse=True)
def settings_are_restored(spark: SparkSession) -> Iterator[None]:
    try:
        jar.jar(spark.version)
    except Unavailable as e:
        require("java", str(e))
    before = {key: spark.conf.get(key, None) for key in (BATCH, BYTES, WHOLE_STAGE)}
    yield
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def event(of: Any, name: str = "n") -> list[Any]:
    """The columns of an event, from a number."""
    return [of.alias(name), F.when(of % 5 != 0, F.concat(F.lit("t"), of.cast("string"))).alias("s")]


def numbers(spark: SparkSession, rows: int = 1_000, partitions: int = 1) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select(*event(F.col("id")))


def in_files(spark: SparkSession, df: DataFrame, folder: Path) -> DataFrame:
    df.coalesce(1).write.parquet(str(folder / "files"))
    return spark.read.parquet(str(folder / "files"))


def cached(spark: SparkSession, df: DataFrame, _: Path) -> DataFrame:
    kept = df.cache()
    kept.count()
    return kept


def matched(spark: SparkSession, df: DataFrame, _: Path) -> DataFrame:
    """Each row with 300 others: the join makes them in one go."""
    many = spark.range(0, 1_500, 1, 1).select((F.col("id") % 5).alias("k"), F.col("id").alias("m"))
    return df.where("n < 20").join(F.broadcast(many), F.col("k") == F.col("n") % 5).select(*event(F.col("n") * 10_000 + F.col("m")))


def merged(spark: SparkSession, df: DataFrame, _: Path) -> DataFrame:
    other = spark.range(0, 600, 1, 1).select((F.col("id") % 300).alias("k"), F.col("id").alias("m"))
    return df.hint("merge").join(other, F.col("k") == F.col("n")).select(*event(F.col("n") * 10_000 + F.col("m")))


PLANS: dict[str, Plan] = {
    "projection": lambda spark, df, _: df,
    "nothing": lambda spark, df, _: df.where("n < 0"),
    "few": lambda spark, df, _: df.where("n % 100 = 3"),
    "a block": lambda spark, df, _: df.limit(64),
    "a limit": lambda spark, df, _: df.limit(129),
    "explode": lambda spark, df, _: (
        df.where("n < 9").select(F.explode(F.sequence(F.lit(0), F.col("n") * 50)).alias("m")).select(*event(F.col("m")))
    ),
    "broadcast join": matched,
    "merge join": merged,
    "outer join": lambda spark, df, _: (
        numbers(spark, 300).select(F.col("n").alias("k")).join(df, F.col("k") == F.col("n") * 2, "left").select("n", "s")
    ),
    "aggregate": lambda spark, df, _: df.groupBy((F.col("n") % 200).alias("g")).count().select(*event(F.col("g") * 1_000 + F.col("count"))),
    "sort": lambda spark, df, _: df.orderBy(F.desc("n")),
    "expand": lambda spark, df, _: df.select("n").rollup("n").count().select(*event(F.coalesce(F.col("n"), F.lit(-1)))),
    "union": lambda spark, df, _: df.union(numbers(spark, 70)).union(numbers(spark, 1)),
    "coalesced": lambda spark, df, _: numbers(spark, 1_000, 7).coalesce(2),
    "coalesced union": lambda spark, df, _: df.union(numbers(spark, 70, 3)).coalesce(1),
    "parquet": in_files,
    "cached": cached,
    "rows of python": lambda spark, df, _: spark.createDataFrame(
        [(i, None if i % 3 else f"p{i}") for i in range(150)], "n bigint, s string"
    ),
    "a python function": lambda spark, df, _: df.select(F.udf(lambda n: n + 1, "bigint")("n").alias("n"), "s"),
    "a window": lambda spark, df, _: df.selectExpr("sum(n) over (partition by n % 7 order by n) as n", "s"),
    "distinct": lambda spark, df, _: df.select((F.col("n") % 90).alias("n")).distinct().select(*event(F.col("n"))),
    "constants": lambda spark, df, _: df.selectExpr("cast(-1 as bigint) as n", "cast(null as string) as s"),
}


def compared(spark: SparkSession, name: str, df: DataFrame) -> None:
    """The operator answers each event: in the order of the rows within a partition, whether Spark generates code or not."""
    wanted = [tuple(row) for row in df.collect()]
    ordered = "Exchange" not in df._jdf.queryExecution().toString() and df.rdd.getNumPartitions() == 1
    for whole in ("true", "false"):
        spark.conf.set(WHOLE_STAGE, whole)
        found = [tuple(row) for row in udo(name, path="jvm")(df).collect()]
        spark.conf.set(WHOLE_STAGE, "true")
        assert sorted(map(repr, found)) == sorted(map(repr, wanted)), f"code is generated: {whole}"
        if ordered:
            assert found == wanted


@pytest.fixture
def forwards(platform: Platform) -> str:
    return platform.operator(input=EVENT, output=EVENT)


@pytest.mark.parametrize("batch", ["1", "100", "10000"])
def test_generated_code_hands_over_every_row_of_a_projection(spark: SparkSession, forwards: str, batch: str) -> None:
    spark.conf.set(BATCH, batch)
    for rows in (0, 1, 63, 64, 65, 128, 333):
        compared(spark, forwards, numbers(spark, rows))


@pytest.mark.long
@pytest.mark.parametrize("batch", ["77", "10000"])
def test_the_rows_of_all_sorts_of_plans_reach_the_operator(spark: SparkSession, forwards: str, tmp_path: Path, batch: str) -> None:
    spark.conf.set(BATCH, batch)
    for name, plan in PLANS.items():
        try:
            compared(spark, forwards, plan(spark, numbers(spark), tmp_path))
        except Exception as e:
            e.add_note(f"plan: {name}")
            raise


def test_the_call_is_part_of_the_generated_code_where_all_columns_are_plain(spark: SparkSession, platform: Platform, forwards: str) -> None:
    def generated(df: DataFrame) -> bool:
        return "UdoEvents" in df._jdf.queryExecution().executedPlan().toString() and ") UdoEvents" in df._jdf.queryExecution().toString()

    assert generated(udo(forwards, path="jvm")(numbers(spark)))
    listed = platform.operator(input={"n": "list<int64>"}, output={"n": "list<int64>"})
    lists = spark.range(3).select(F.array("id").alias("n"))
    assert not generated(udo(listed, path="jvm")(lists))
    assert not generated(udo(forwards, path="jvm", keep=["more"])(numbers(spark).withColumn("more", F.lit(1))))


@pytest.mark.long
def test_values_of_all_plain_types_are_gathered_in_code_as_in_rows(spark: SparkSession, platform: Platform) -> None:
    """More columns than one word has null bits; computed ones, since columns of rows that exist already would be read from these."""
    kinds = PLAIN * 7
    name = platform.operator(input=arrow_of(kinds), output=arrow_of(kinds))
    spark.conf.set(BATCH, "100")
    for seed, nulls in enumerate((0.0, 0.3, 1.0)):
        rows = rows_of(kinds, 150, nulls, seed)
        given = spark.createDataFrame(rows, schema_of(kinds)).coalesce(1)
        computed = given.select(*(F.when(F.rand(1) < 2, F.col(c)).alias(c) for c in given.columns))
        compared(spark, name, computed)


@pytest.mark.long
def test_large_texts_end_a_block_early_and_bytes_bound_the_frame(spark: SparkSession, platform: Platform, forwards: str) -> None:
    r = random.Random(7)
    sizes = [r.choice([0, 1, 5_000, 700_000, 3_000_000]) for _ in range(60)]
    df = spark.createDataFrame(list(enumerate(sizes)), "n bigint, size int").coalesce(1)
    compared(spark, forwards, df.selectExpr("n", "repeat('z', size) as s"))
    counts = platform.operator(COUNTS, input=EVENT, output={"n": "int64"})
    spark.conf.set(BYTES, "1000000")
    frames = [
        row.n for row in udo(counts, path="jvm")(spark.range(0, 20, 1, 1).selectExpr("id as n", "repeat('z', 600000) as s")).collect()
    ]
    assert sum(frames) == 20 and max(frames) == 2


@pytest.mark.long
def test_a_full_block_at_the_end_of_the_rows_is_handed_over_once(spark: SparkSession, platform: Platform) -> None:
    """One row becomes as many as a block holds, in a plan that does not stop between a block and its end."""
    counts = platform.operator(COUNTS, input=EVENT, output={"n": "int64"})
    spark.conf.set(BATCH, "64")
    one = numbers(spark).groupBy().agg(F.count("*").alias("n"))
    for rows in (64, 128, 130):
        many = one.select(F.explode(F.sequence(F.lit(1), F.lit(rows))).alias("n")).select(F.col("n").cast("bigint"), F.lit("s").alias("s"))
        frames = [row.n for row in udo(counts, path="jvm")(many.coalesce(1)).collect()]
        direct = [row.n for row in udo(counts, path="jvm")(many).collect()]
        assert frames == direct == [64] * (rows // 64) + [rows % 64] * (rows % 64 > 0)


@pytest.mark.long
def test_a_failing_expression_is_sparks_own_error(spark: SparkSession, forwards: str) -> None:
    df = spark.range(0, 1_000, 1, 1).selectExpr("id as n", "if(id = 500, cast(raise_error('no event') as string), 's') as s")
    with pytest.raises(Exception, match="no event"):
        udo(forwards, path="jvm")(df).collect()


@pytest.mark.long
def test_a_query_that_streams_is_gathered_too(spark: SparkSession, forwards: str, tmp_path: Path) -> None:
    numbers(spark, 300, 3).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(T.StructType([T.StructField("n", T.LongType()), T.StructField("s", T.StringType())]))
    table = f"t{uuid.uuid4().hex[:8]}"
    events = stream.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in")).selectExpr("n + 0 as n", "s")
    query = udo(forwards, path="jvm")(events).writeStream.format("memory").queryName(table).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(tuple(row) for row in spark.table(table).collect()) == sorted(tuple(row) for row in numbers(spark, 300).collect())
