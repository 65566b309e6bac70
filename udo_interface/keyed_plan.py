"""How a keyed call lies in Spark's plan: a partition for each part of the key groups, and tasks that know which part and epoch is theirs.

In a classic session a node of ours in the plan says so (jvm/UdoKeyed.scala), whatever Spark puts before and behind the call, and whichever
thread evaluates it. Where that node is not to be had (Spark Connect, a Spark without a jar) the call repartitions by itself, and its tasks
take what Spark tells them for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from udo_interface import jvm_path, progress, settings
from udo_interface.key_groups import with_key_group
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
    """The micro-batch in whose foreachBatch this DataFrame is made; None if it is made in none."""
    if (calls := _calls(df)) is not None:
        found = list(calls.around(df._jdf))
        return Batch(*found) if found else None
    if not hasattr(df, "_jdf"):  # Spark Connect tells nothing of it on this side
        return None
    local = df.sparkSession.sparkContext.getLocalProperty
    if query := local("sql.streaming.queryId"):
        return Batch(query, local("spark.jobGroup.id") or "", local("streaming.sql.batchId") or "")
    session = df.sparkSession._jsparkSession  # a query's own, a clone, if the DataFrame is its batch in another thread
    for running in session.sharedState().activeStreamingQueries().values():
        if running.sparkSessionForStream().equals(session):
            return Batch(running.id().toString(), running.runId().toString(), str(running.getLatestExecutionContext().batchId()))
    return None


def partitioned(
    df: DataFrame, partitions: int, columns: Sequence[str], order: Sequence[Column], deployment: str, uid: str, what: str
) -> tuple[DataFrame, bool]:
    """These columns and the key group of `df`, in partitions by the group, sorted by `order`; whether each begins with its mark."""
    settings.keep_empty_stages(df.sparkSession.conf)
    wanted = [F.col("`" + n.replace("`", "``") + "`") for n in (*columns, GROUP_COLUMN)]
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
    """The answers of a keyed call in a query, whose partitions begin with their marks: each is evaluated whole, whatever is asked of it."""
    return type(df)(jvm_path.calls(df.sparkSession).whole(df._jdf, deployment), df.sparkSession)


def repartitioned(df: DataFrame, key: Sequence[str], schema: pa.Schema) -> DataFrame:
    """`df` and its key group, in as many partitions by the group as Spark's shuffles have."""
    return with_key_group(df, key, schema).repartition(partition_count(df), F.col(GROUP_COLUMN))


def partition_count(df: DataFrame) -> int:
    """The partitions of a shuffle in the session."""
    return int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def _calls(df: DataFrame) -> Any:
    """The entry in the session's JVM; None where there is none."""
    if not hasattr(df, "_jdf"):
        return None
    try:
        return jvm_path.calls(df.sparkSession)
    except Unavailable as e:
        log.info("keyed calls rely on what Spark tells their tasks: %s", e)
        return None
