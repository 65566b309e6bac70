"""A Spark application on two executor processes; run by test_cluster.py in a process of its own. Prints one JSON line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa

from udo_interface import udo
from udo_interface.java import QUIET, spark_session


def main(name: str, registry: str, node: str, path: str) -> None:
    """Send events through operator `name`; the executors learn the node manager's socket from their environment."""
    conf = {"spark.udo.registry": registry, "spark.executorEnv.UDO_NODE": node, "spark.executor.memory": "1g"}
    spark = spark_session("cluster", master="local-cluster[2,1,1024]", **QUIET, **conf)
    spark.sparkContext.setLogLevel("OFF")

    def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for b in batches:  # the parent of a Python worker is its executor's daemon
            yield b.append_column("executor", pa.array([os.getppid()] * b.num_rows, pa.int64()))

    call = udo(name)
    rows = call(spark.range(0, 4000, 1, 8), path=path).mapInArrow(tag, "id long, executor long").collect()
    spark.stop()
    print(json.dumps({"ids": sorted(r.id for r in rows) == list(range(4000)), "executors": len({r.executor for r in rows})}))


if __name__ == "__main__":
    main(*sys.argv[1:])
