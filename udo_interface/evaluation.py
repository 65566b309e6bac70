"""Which evaluation of a plan a task's rows belong to: of which query and micro-batch, or of which batch job, and which partition of it.

In a classic session the plan says so itself, in rows before those of each partition (jvm/UdoKeyed.scala). Elsewhere Spark tells a task its
query and epoch, and the rows tell the partition by their key group: the number of the task's own is another one where something behind
the call has put partitions together, sorted or united them. A partition without rows is then not known, and nothing happens in it.
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

from udo_interface.key_groups import groups_of, partition_of
from udo_protocol.errors import ProtocolError, UsageError
from udo_protocol.formats.schema import GROUP_COLUMN

_WORD = 4  # bytes of its mark that a row's key group holds


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


def told_by_rows(
    of: Evaluation, batches: Iterator[pa.RecordBatch], partitions: int, key_groups: int, what: str
) -> tuple[Evaluation | None, Iterator[pa.RecordBatch]]:
    """The evaluation of the partition that these rows are of; None if there are none."""
    rows = (b for b in batches if b.num_rows)
    if (first := next(rows, None)) is None:
        return None, rows
    partition = partition_of(first.column(GROUP_COLUMN)[0].as_py(), partitions, key_groups)
    # In which of the epochs before it nothing has happened is not known.
    told = replace(of, partition=partition, since=-1)
    return told, required(itertools.chain([first], rows), partition, partitions, key_groups, what)


def required(batches: Iterator[pa.RecordBatch], partition: int, partitions: int, key_groups: int, what: str) -> Iterator[pa.RecordBatch]:
    """These batches; UsageError at the first with a row of another partition."""
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
    """What the first rows of a marked partition say by their key groups, and the partition without them."""
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
