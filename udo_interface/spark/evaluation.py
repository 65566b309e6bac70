"""The evaluation of a plan that a task's rows belong to: the query and micro-batch, or the batch job, and the partition.

In a classic session the plan itself says so, in mark rows at the beginning of each partition (jvm/UdoKeyed.scala). Elsewhere Spark tells
a task its query and epoch, and the key groups of the rows tell the partition: the task's own number differs if an operation downstream of
the call coalesces, sorts or unites partitions. There a partition without rows stays unknown, and nothing happens in it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from udo_interface.store.spark_partitions import groups_of, partition_of
from udo_protocol.errors import ProtocolError, UsageError
from udo_protocol.formats.schema import GROUP_COLUMN

_WORD = 4  # bytes of the mark in each row's key group


@dataclass(frozen=True)
class Evaluation:
    """`query` and `run` are Spark's ids, empty for a batch job, which is the only epoch of a session of its own, `job`."""

    partition: int
    query: str = ""
    run: str = ""
    epoch: int = 0
    job: str = ""
    since: int | None = None  # the last evaluated epoch before this one, -1 for none; None: unknown, so the one before is required
    asynchronous: bool = False  # the query writes its offsets now and then, not with each epoch

    def session(self, app: str) -> str:
        """The name of the session whose state it works on."""
        return self.query or f"{app}/{self.job}"


def of_task(context: TaskContext) -> Evaluation:
    """The task's evaluation by Spark's local properties, without the run."""
    query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
    if query:
        return Evaluation(context.partitionId(), query, epoch=int(batch or 0))
    return Evaluation(context.partitionId(), job=context.getLocalProperty("spark.sql.execution.id") or f"stage{context.stageId()}")


def run_of_task(context: TaskContext, what: str) -> str:
    """The run of the streaming query, a new one after each restart; Spark makes it the job group of the query's thread."""
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(run))
    raise UsageError(
        f"{what} keeps state and needs the run of its streaming query, which Spark keeps as the job group: "
        f"expected a UUID, got {run!r}. In foreachBatch, call it before the job group is set to something else"
    )


def told_by_rows(
    of: Evaluation, batches: Iterator[pa.RecordBatch], partitions: int, key_groups: int, what: str
) -> tuple[Evaluation | None, Iterator[pa.RecordBatch]]:
    """Return the evaluation of the partition that these rows belong to (None without rows), and the rows."""
    rows = (b for b in batches if b.num_rows)
    if (first := next(rows, None)) is None:
        return None, rows
    partition = partition_of(first.column(GROUP_COLUMN)[0].as_py(), partitions, key_groups)
    # It is unknown in which earlier epochs nothing has happened, so none of them is required.
    told = replace(of, partition=partition, since=-1)
    return told, required(itertools.chain([first], rows), partition, partitions, key_groups, what)


def required(batches: Iterator[pa.RecordBatch], partition: int, partitions: int, key_groups: int, what: str) -> Iterator[pa.RecordBatch]:
    """Pass on these batches; UsageError at the first with a row of another partition."""
    mine = pa.array(groups_of(partition, partitions, key_groups), pa.int32())
    for batch in batches:
        if not pc.all(pc.is_in(batch.column(GROUP_COLUMN), mine)).as_py():
            raise UsageError(
                f"{what} keeps state, and this task has rows of other partitions than its own, {partition}: something behind the call puts "
                "partitions together (coalesce, union, a sort). With store= and outside of a classic session a call cannot take part in "
                "that: do it in foreachBatch, with what df.localCheckpoint() returns there"
            )
        yield batch


def marked(batches: Iterator[pa.RecordBatch]) -> tuple[Evaluation, Iterator[pa.RecordBatch]]:
    """Decode the mark in the key groups of a partition's first rows; return the evaluation, and the partition without these rows."""
    first = next((b for b in batches if b.num_rows), None)
    length = 0 if first is None else -first.column(GROUP_COLUMN)[0].as_py()
    if first is None or length <= 0:
        raise ProtocolError("a partition of a keyed call begins without the rows that say which one it is: something has been put between")
    said, missing = b"", -(-length // _WORD)
    for batch in itertools.chain([first.slice(1)], batches):
        words = batch.column(GROUP_COLUMN).slice(0, missing)
        said, missing = said + words.to_numpy().astype("<i4").tobytes(), missing - len(words)
        if not missing:
            return Evaluation(**json.loads(said[:length])), itertools.chain([batch.slice(len(words))], batches)
    raise ProtocolError(f"a partition of a keyed call ends within the {length} bytes that say which one it is")
