"""Calls of UDO as users make them, and the paper's ablation: the same lane with one event per frame."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
from pyspark.sql import DataFrame

from udo_interface import udo
from udo_interface.spark.deployed import fetch
from udo_interface.spark.task import ROWS_PER_FRAME, Task
from udo_protocol.formats.schema import to_ipc

# The deployment for each function's name.
DEPLOYMENTS = {"filter": "keep", "forward": "forward"}


def through_udo(df: DataFrame, operator: str, registry: str) -> DataFrame:
    """Call `udo(name)(df)` by way of Spark's Python workers."""
    return udo(DEPLOYMENTS[operator], registry=registry, path="python")(df)


def through_jvm(df: DataFrame, operator: str, registry: str) -> DataFrame:
    """Make the same call on the JVM path, without Python workers on Spark's side."""
    return udo(DEPLOYMENTS[operator], registry=registry, path="jvm")(df)


def unbatched(df: DataFrame, operator: str, registry: str, node: str) -> DataFrame:
    """Send one frame per event; Spark's side stays batched on both ends, so that only the queue's batching is missing."""
    deployed = fetch(DEPLOYMENTS[operator], registry)
    sent, back = to_ipc(deployed.input), to_ipc(deployed.output)
    task = Task(
        deployment=deployed.reference,
        what=deployed.what,
        node=node,
        app="unbatched",
        uid="",
        pin_epoch=False,
        window=None,
        keep=(),
        keyed=None,
        input=sent,
        output=back,
        delivered=back,
    )

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answers = task.arrow(batch.slice(i, 1) for batch in batches for i in range(batch.num_rows))
        while gathered := list(islice(answers, ROWS_PER_FRAME)):
            yield pa.Table.from_batches(gathered).combine_chunks().to_batches()[0]

    return df.mapInArrow(apply, df.schema)
