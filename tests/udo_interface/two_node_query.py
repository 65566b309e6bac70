"""A Spark application whose executors run on two hosts: 100 keys counted over some epochs, without and with a store.

Run by test_two_nodes.py in a process of its own. Prints one JSON line: for each query its counts by epoch, the node managers that its
tasks asked, and its error.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from udo_interface import udo
from udo_interface.java import QUIET, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS, EPOCHS, PARTITIONS = 100, 3, 4
# For short-lived processes: good compilation takes longer than it saves.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(operator: str, registry: str, master: str, address: str, directory: str) -> None:
    """Run both queries, one after the other."""
    home = Path(directory)
    conf = {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.udo.registry": registry,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM,
        "spark.cores.max": 2,
        "spark.scheduler.minRegisteredResourcesRatio": 1,  # both hosts take part from the first task on
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.locality.wait": 0,  # no task waits for the host with most of its input
        "spark.shuffle.reduceLocality.enabled": False,
        "spark.task.maxFailures": 1,  # a refused task is not tried again on the host where it would succeed
        "spark.sql.shuffle.partitions": PARTITIONS,
    }
    spark = spark_session("two nodes", master=master, **QUIET, **conf)
    spark.sparkContext.setLogLevel("OFF")
    (home / "in").mkdir()
    for epoch in range(EPOCHS):
        pq.write_table(pa.table({"k": [f"k{i}" for i in range(KEYS)]}), home / "in" / f"{epoch}.parquet")

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for b in batches:
            yield b.append_column("node", pa.array([os.environ["UDO_NODE"]] * b.num_rows))

    def query(name: str, **options: Any) -> dict[str, Any]:
        counts: dict[int, list[tuple[str, int]]] = defaultdict(list)
        nodes: set[str] = set()

        def write(df: DataFrame, epoch: int) -> None:
            rows = df.collect()
            counts[epoch] = sorted((r.k, r.n) for r in rows)
            nodes.update(r.node for r in rows)

        stream = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).parquet(str(home / "in"))
        counted = udo(operator, key="k", **options)(stream).mapInArrow(where, "k string, n long, node string")
        started = counted.writeStream.foreachBatch(write).option("checkpointLocation", str(home / name)).start()
        error = ""
        try:
            started.processAllAvailable()
        except PySparkException as e:
            error = str(e)
        started.stop()
        return {"counts": counts, "nodes": sorted(nodes), "error": error, "session": str(started.id)}

    told = {"without": query("without"), "with": query("with", store=str(home / "store"))}
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
