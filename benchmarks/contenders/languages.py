"""The operations of the languages benchmark in Python inside Spark: without log, replay, or state beyond the job."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks.contenders import native
from benchmarks.contenders.stateful import COUNTED
from benchmarks.operators.keep.keep import THRESHOLD
from udo_interface.spark.keyed_plan import repartitioned

_KEYED = pa.schema([("id", pa.int64()), ("card", pa.int64())])
_COUNTED = pa.schema([*_KEYED, ("n", pa.int64())])


def inside(df: DataFrame, operation: str) -> DataFrame:
    """Run the operation in Spark's own Python worker."""
    if operation in ("forward", "filter"):
        return native.map_in_arrow(df, operation)
    if operation in _EACH:
        return df.mapInArrow(_EACH[operation], df.schema)
    return repartitioned(df, ["card"], _KEYED).mapInArrow(_COUNTS[operation], COUNTED)


def _forward_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)


def _filter_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist([event for event in batch.to_pylist() if event["amount"] > THRESHOLD], schema=batch.schema)


_EACH = {"forward_per_event": _forward_each, "per_event": _filter_each}


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[int, int] = {}
    for batch in batches:
        rows = []
        for event in batch.to_pylist():
            n = counts[event["card"]] = counts.get(event["card"], 0) + 1
            rows.append({"id": event["id"], "card": event["card"], "n": n})
        yield pa.RecordBatch.from_pylist(rows, schema=_COUNTED)


def _count_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[int, int] = {}
    for batch in batches:
        numbers = []
        for card in batch.column("card").to_pylist():
            n = counts[card] = counts.get(card, 0) + 1
            numbers.append(n)
        yield pa.RecordBatch.from_arrays([batch.column("id"), batch.column("card"), pa.array(numbers, pa.int64())], schema=_COUNTED)


_COUNTS = {"keyed_count": _count, "keyed_count_batches": _count_batches}
