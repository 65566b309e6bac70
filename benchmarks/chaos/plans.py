"""Plans that users put around a keyed call and that keep the order of each key's answers. tests/support/plans.py has more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Shape = Callable[["DataFrame"], "DataFrame"]
Evaluate = Callable[["DataFrame"], list[Any]]

# Steps before the call, on any events; steps after it, on any answers with a column `k`.
BEFORE: dict[str, Shape] = {
    "nothing": lambda df: df,
    "coalesce": lambda df: df.coalesce(1),
    "filter": lambda df: df.where("k is not null"),
    "columns": lambda df: df.select(*reversed(df.columns)),
}
BEHIND: dict[str, Shape] = {
    **BEFORE,
    "repartition by key": lambda df: df.repartition(2, "k"),
    "drop a column again": lambda df: df.withColumn("more", df["k"]).drop("more"),
}


def _in_thread(df: DataFrame) -> list[Any]:
    with ThreadPoolExecutor(1) as pool:
        found: list[Any] = pool.submit(df.collect).result()
    return found


def _left(df: DataFrame) -> list[Any]:
    found: list[Any] = df.sparkSession.createDataFrame([], df.schema).union(df).collect()
    return found


# Ways to evaluate a micro-batch in foreachBatch.
EVALUATED: dict[str, Evaluate] = {
    "collected": lambda df: df.collect(),
    "in a thread": _in_thread,
    "behind a table": _left,
    "coalesced": lambda df: df.coalesce(1).collect(),
    "iterated": lambda df: list(df.toLocalIterator()),
}
