"""Any value that Spark has in its columns reaches an operator and comes back unchanged, by any kind of call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tests.support.drawn_values import as_batch, columns, drawn_rows, drawn_schema, exact
from tests.support.plans import configured
from tests.support.seeds import seeds
from tests.udo_interface.conftest import Platform
from udo_interface import connect, register, udo

IDENTITY = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        yield event
"""
IN_BATCHES = """
from udo_runtime import operator
@operator
def run(batch):
    return batch
"""
ROWS = 40
# Session settings that change how Spark sends and takes values.
SETTINGS = {
    "spark.sql.session.timeZone": ["UTC", "Europe/Berlin", "America/New_York"],
    "spark.sql.execution.arrow.useLargeVarTypes": ["true", "false"],
    "spark.sql.execution.arrow.maxRecordsPerBatch": ["1", "7", "10000"],
    "spark.sql.execution.arrow.compression.codec": ["none", "zstd"],  # PySpark itself cannot read all that Spark writes with lz4
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": ["true", "false"],
    "spark.sql.timestampType": ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"],
    "spark.sql.ansi.enabled": ["true", "false"],
}


def plain(rows: Any) -> list[Any]:
    """Return the rows in the order of their ids."""
    return sorted((exact(row) for row in rows), key=lambda row: row["id"])


@pytest.mark.parametrize("seed", seeds(1, deep=20))
def test_values_are_what_they_were(spark: SparkSession, platform: Platform, seed: int) -> None:
    draw = random.Random(seed)
    settings = {name: draw.choice(values) for name, values in SETTINGS.items()}
    schema = T.StructType([T.StructField("id", T.LongType()), *drawn_schema(draw)])
    rows = [(n, *row[1:]) for n, row in enumerate(drawn_rows(draw, schema, ROWS))]
    declared = columns(schema)
    by_event = platform.operator(IDENTITY, input=declared, output=declared)
    in_batches = platform.operator(IN_BATCHES, input=declared, output=declared)
    register(spark)
    with configured(spark, settings):
        df = spark.createDataFrame(rows, schema).repartition(3)
        df.createOrReplaceTempView("drawn")
        expected = plain(df.collect())
        assert plain(df.mapInArrow(lambda batches: batches, df.schema).collect()) == expected, "the plain function"
        for name in (by_event, in_batches):
            assert plain(udo(name, path="python")(df).collect()) == expected, "Python path"
            assert plain(udo(name, path="jvm")(df).collect()) == expected, "JVM path"
            assert plain(spark.sql(f"SELECT * FROM udo('{name}', TABLE(drawn))").collect()) == expected, "SQL"
            answers = df.rdd.mapPartitions(udo(name).map_partitions)
            assert plain(spark.createDataFrame(answers, df.schema).collect()) == expected, "RDD"
            got: list[Any] = []
            with connect(name, node=platform.node) as client:
                client.add_listener(got.append, batches=True)
                client.send_batch(as_batch(schema, rows))
            assert [exact(row) for batch in got for row in batch.to_pylist()] == [
                exact(row) for row in as_batch(schema, rows).to_pylist()
            ], "client"
