"""Run by test_connect.py as a client of a Connect server: calls operators in each way, and prints the results as one JSON document.

Arguments: the server's URL, the deployments `double`, `count` and `fails`, and a folder for streams.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from udo_interface import register, udo

ROWS = 300


def said(refused: Callable[[], Any]) -> str:
    """Return the error's class and message; 'nothing' if there is no error."""
    try:
        refused()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "nothing"


def events(spark: SparkSession, first: int) -> DataFrame:
    return spark.range(first, first + ROWS, 1, 2).selectExpr("id", "concat('k', id * id % 17) AS k")


def batch(spark: SparkSession, double: str, count: str, fails: str) -> dict[str, Any]:
    df = events(spark, 0)
    kept = udo(double)(df, keep="k")
    udo(double)(df).createOrReplaceTempView("doubled")
    return {
        "columns": kept.columns,
        "sum": kept.selectExpr("sum(twice) AS s").collect()[0].s,
        "view": spark.sql("SELECT count(*) AS n FROM doubled").collect()[0].n,
        "counted": {r.k: r.n for r in udo(count)(df, key="k").groupBy("k").max("n").toDF("k", "n").collect()},
        "listed": sorted(d.deployment for d in udo.ls()),
        "wrong column": said(lambda: udo(double)(df.withColumnRenamed("id", "idd"))),
        "no key": said(lambda: udo(count)(df)),
        "failed": said(lambda: udo(fails)(df).collect()),
        "rdd": said(lambda: udo(double).map_partitions),
        "sql": said(lambda: register(spark)),
    }


def run(df: DataFrame, folder: Path, each: Callable[[DataFrame, int], Any] | None = None) -> None:
    """Process all input there is, from the checkpoint on."""
    writer = df.writeStream.foreachBatch(each) if each else df.writeStream.format("parquet").option("path", str(folder / "out"))
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()


def streams(spark: SparkSession, double: str, count: str, folder: Path) -> dict[str, Any]:
    arrived = folder / "in"
    events(spark, 0).coalesce(1).write.mode("append").parquet(str(arrived))
    source = spark.readStream.schema("id long, k string").option("maxFilesPerTrigger", 1).parquet(str(arrived))
    refused = said(lambda: udo(count)(source, key="k"))
    spark.conf.set("spark.udo.synchronousProgress", "true")
    for first in (ROWS, 2 * ROWS):  # the second query continues from the first one's checkpoint
        run(udo(count)(source, key="k"), folder / "keyed")
        run(udo(count)(source, key="k").coalesce(1), folder / "coalesced")
        events(spark, first).coalesce(1).write.mode("append").parquet(str(arrived))
    run(udo(count)(source, key="k"), folder / "keyed")
    run(udo(count)(source, key="k").coalesce(1), folder / "coalesced")
    run(udo(double, pin="epoch")(source), folder / "stateless")
    beside = str(folder / "beside")

    def stateless(df: DataFrame, epoch: int) -> None:
        udo(double)(df).write.mode("append").parquet(beside)

    def keyed(df: DataFrame, epoch: int) -> None:
        udo(count)(df, key="k").count()

    run(source, folder / "inside", stateless)
    return {
        "refused": refused,
        "counted": sorted(tuple(r) for r in spark.read.parquet(str(folder / "keyed" / "out")).collect()),
        "coalesced": sorted(tuple(r) for r in spark.read.parquet(str(folder / "coalesced" / "out")).collect()),
        "doubled": spark.read.parquet(str(folder / "stateless" / "out")).selectExpr("sum(twice) AS s").collect()[0].s,
        "inside": spark.read.parquet(beside).selectExpr("sum(twice) AS s").collect()[0].s,
        "keyed inside": said(lambda: run(source, folder / "refused", keyed)),
    }


if __name__ == "__main__":
    url, double, count, fails, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    found = {"batch": batch(spark, double, count, fails), "streams": streams(spark, double, count, Path(folder))}
    spark.stop()
    print(json.dumps(found))
