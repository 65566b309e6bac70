"""Which evaluation of a plan a task's rows belong to: of which query and micro-batch, or of which batch job, and which partition of it.

In a classic session the plan says so itself, in a row before those of each partition (jvm/UdoKeyed.scala). Elsewhere it is what Spark tells
the task, whose partition is one of the call's only where nothing behind the call has put partitions together.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from udo_protocol.errors import ProtocolError, UsageError

# The last column of what a keyed call gets; null but in the first row of each partition.
MARK_COLUMN = "__udo_mark"


@dataclass(frozen=True)
class Evaluation:
    """`query` and `run` are ids of Spark's, empty for a batch job, which is one epoch of a session of its own, `job`."""

    partition: int
    query: str = ""
    run: str = ""
    epoch: int = 0
    job: str = ""
    since: int | None = None  # the last epoch before it that has been evaluated, -1 for none; None: unknown, so the one before has to be
    asynchronous: bool = False  # the query writes its offsets now and then, not with each epoch

    def session(self, app: str) -> str:
        """The state that it works on, by name."""
        return self.query or f"{app}/{self.job}"


def of_task(context: TaskContext) -> Evaluation:
    """As Spark's local properties tell it. The run is left out."""
    query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
    if query:
        return Evaluation(context.partitionId(), query, epoch=int(batch or 0))
    return Evaluation(context.partitionId(), job=context.getLocalProperty("spark.sql.execution.id") or f"stage{context.stageId()}")


def run_of_task(context: TaskContext, what: str) -> str:
    """The run of the streaming query, which Spark makes the job group of its thread; a restarted query is told from it."""
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(run))
    raise UsageError(
        f"{what} keeps state and needs the run of its streaming query, which Spark keeps as the job group: "
        f"expected a UUID, got {run!r}. In foreachBatch, call it before the job group is set to something else"
    )


def marked(batches: Iterator[pa.RecordBatch]) -> tuple[Evaluation, Iterator[pa.RecordBatch]]:
    """What the first row of a marked partition says, and the partition without it."""
    first = next((b for b in batches if b.num_rows), None)
    said = None if first is None else first.column(MARK_COLUMN)[0].as_py()
    if first is None or said is None:
        raise ProtocolError("a partition of a keyed call begins without the row that says which one it is: something has been put between")

    def rest() -> Iterator[pa.RecordBatch]:
        yield first.slice(1)
        yield from batches

    return Evaluation(**json.loads(said)), rest()
