"""The layout of a keyed call in Spark's plan: a partition for each part of the key groups, and tasks that know their part and epoch.

In a classic session a plan node of ours tells the tasks (jvm/UdoKeyed.scala), whatever Spark puts before and after the call, and whichever
thread evaluates it. If that node is not available (Spark Connect, a Spark without a jar), the call repartitions by itself, and its tasks
rely on Spark's own properties.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from udo_interface.spark import jvm_path, progress, settings
from udo_interface.spark.key_groups import with_key_group
from udo_interface.spark.spark_types import quoted
from udo_protocol.errors import Unavailable
from udo_protocol.formats.schema import GROUP_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """The micro-batch in whose foreachBatch a DataFrame is made; `run` is empty where Spark does not tell it."""

    query: str
    run: str
    batch: str


def around(df: DataFrame) -> Batch | None:
    """The micro-batch in whose foreachBatch this DataFrame is made; None outside of foreachBatch."""
    if (calls := _calls(df)) is not None:
        found = list(calls.around(df._jdf))
        return Batch(*found) if found else None
    if not hasattr(df, "_jdf"):  # Spark Connect does not tell this side
        return None
    local = df.sparkSession.sparkContext.getLocalProperty
    if query := local("sql.streaming.queryId"):
        return Batch(query, local("spark.jobGroup.id") or "", local("streaming.sql.batchId") or "")
    session = df.sparkSession._jsparkSession  # in another thread, a batch's DataFrame has the query's own session, a clone
    for running in session.sharedState().activeStreamingQueries().values():
        if running.sparkSessionForStream().equals(session):
            return Batch(running.id().toString(), running.runId().toString(), str(running.getLatestExecutionContext().batchId()))
    return None


def partitioned(
    df: DataFrame, partitions: int, columns: Sequence[str], order: Sequence[Column], deployment: str, uid: str, what: str
) -> tuple[DataFrame, bool]:
    """Partition these columns of `df` and the key group by the group, sorted by `order`; return also whether each has its mark."""
    settings.keep_empty_stages(df.sparkSession.conf)
    wanted = [quoted(n) for n in (*columns, GROUP_COLUMN)]
    if (calls := _calls(df)) is not None:
        given = df.sortWithinPartitions(*order) if order else df.select(*wanted)
        made = type(df)(calls.keyed(given._jdf, deployment, uid, GROUP_COLUMN, partitions, bool(order)), df.sparkSession)
        return made.select(*wanted) if order else made, True
    if df.isStreaming:
        progress.watch(df.sparkSession)
    elif inside := around(df):
        progress.require_synchronous_query(df.sparkSession, inside.query, what)
    df = df.repartition(partitions, F.col(GROUP_COLUMN))
    return (df.sortWithinPartitions(*order) if order else df).select(*wanted), False


def whole(df: DataFrame, deployment: str) -> DataFrame:
    """The answers of a keyed call in a query with marked partitions: each is evaluated whole, however little of it is read."""
    return type(df)(jvm_path.calls(df.sparkSession).whole(df._jdf, deployment), df.sparkSession)


def repartitioned(df: DataFrame, key: Sequence[str], schema: pa.Schema) -> DataFrame:
    """`df` with its key group, partitioned by the group into as many partitions as Spark's shuffles have."""
    return with_key_group(df, key, schema).repartition(partition_count(df), F.col(GROUP_COLUMN))


def partition_count(df: DataFrame) -> int:
    """The partitions of a shuffle in the session."""
    return int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def _calls(df: DataFrame) -> Any:
    """The entry point in the session's JVM; None if there is none."""
    if not hasattr(df, "_jdf"):
        return None
    try:
        return jvm_path.calls(df.sparkSession)
    except Unavailable as e:
        log.info("keyed calls rely on what Spark tells their tasks: %s", e)
        return None
