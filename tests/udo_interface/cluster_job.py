"""A Spark application on two executor processes; run by test_cluster.py in a process of its own. Prints one JSON line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.support.plans import Plan, Planned
from udo_interface import udo
from udo_interface.java import QUIET, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMPTY = ((40, 0), (40,))
PLANS = (
    Plan(behind=("coalesce",), epochs=EMPTY),
    Plan(("filter",), ("repartition by key",), "union with a table on its left", partitions=(3, 2)),
    Plan(inside="in a thread", called="inside", epochs=EMPTY),
    Plan(behind=("join, sort-merge",), inside="sorted", adaptive=False),
)


def main(name: str, registry: str, node: str, path: str, folder: str = "") -> None:
    """Send events through operator `name`; the executors learn the node manager's socket from their environment. With a `folder`, the
    operator is keyed, and plans around it run in that folder."""
    conf = {"spark.udo.registry": registry, "spark.executorEnv.UDO_NODE": node, "spark.executor.memory": "1g"}
    spark = spark_session("cluster", master="local-cluster[2,1,1024]", **QUIET, **conf)
    spark.sparkContext.setLogLevel("OFF")

    if folder:
        found = [counts(spark, Path(folder) / f"{n}", name, plan) for n, plan in enumerate(PLANS)]
        spark.stop()
        print(json.dumps(found))
        return

    def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for b in batches:  # the parent of a Python worker is its executor's daemon
            yield b.append_column("executor", pa.array([os.getppid()] * b.num_rows, pa.int64()))

    call = udo(name)
    rows = call(spark.range(0, 4000, 1, 8), path=path).mapInArrow(tag, "id long, executor long").collect()
    spark.stop()
    print(json.dumps({"ids": sorted(r.id for r in rows) == list(range(4000)), "executors": len({r.executor for r in rows})}))


def counts(spark: SparkSession, folder: Path, name: str, plan: Plan) -> str:
    """Run a plan; return what is wrong with its answers, '' if nothing."""
    planned = Planned(spark, folder, name, plan)
    try:
        planned.run()
        planned.check()
    except Exception as e:
        return f"{plan}: {e}"
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
