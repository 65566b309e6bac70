"""The function inside Spark's own Python worker: called by mapInArrow, and as a row-wise @udf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import struct, udf

from benchmarks.contenders.functions import FUNCTIONS
from benchmarks.operators.keep.keep import THRESHOLD


def map_in_arrow(df: DataFrame, operator: str) -> DataFrame:
    """Call the function on one record batch at a time, in the worker's own process."""
    function = FUNCTIONS[operator]

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(function, batches)

    return df.mapInArrow(apply, df.schema)


def first_columns(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """Forward some columns among many: mapInArrow gets all of them, whatever its function reads."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.select(list(names)) for batch in batches)

    return df.mapInArrow(apply, df.select(*names).schema)


def udf_rows(df: DataFrame, operator: str) -> DataFrame:
    """Call the function on one row at a time, pickled: @udf(useArrow=False)."""
    if operator == "filter":
        return df.where(udf(lambda amount: amount > THRESHOLD, "boolean", useArrow=False)(df.amount))
    forward = udf(lambda row: row, df.schema, useArrow=False)
    return df.select(forward(struct("*")).alias("row")).select("row.*")
