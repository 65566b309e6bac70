"""A keyed query whose executors come and go; run by test_cluster.py in a process of its own. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.keyed_stream import Stream
from udo_interface.java import QUIET, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCHS = 2
# Executors are asked for when there are tasks, and end after a second without.
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
}


def executors(spark: SparkSession) -> set[str]:
    """The ids of the executors that live."""
    return {str(i) for i in _ids(spark.sparkContext._jsc.sc().getExecutorIds())}


def _ids(ids: object) -> list[object]:
    return [ids.apply(n) for n in range(ids.length())]  # type: ignore[attr-defined]


def main(name: str, registry: str, node: str, path: str, folder: str) -> None:
    """Run micro-batches of a keyed query. When one begins, all executors of the one before are gone; at its second evaluation, those of the
    first are gone, too, with the answers that they cached."""
    conf = {"spark.udo.registry": registry, "spark.executorEnv.UDO_NODE": node, "spark.executor.memory": "1g", **DYNAMIC}
    spark = spark_session("dynamic", master="local-cluster[2,1,1024]", **QUIET, **conf)
    spark.sparkContext.setLogLevel("OFF")
    stream = Stream(spark, Path(folder), name, path=path)
    seen: set[str] = set()

    def none_left() -> None:
        seen.update(executors(spark))
        while executors(spark):  # the test's time is bounded as a whole
            time.sleep(0.1)

    def each(df: DataFrame, epoch: int) -> None:
        df.persist()
        first = df.collect()
        none_left()
        stream.gather(df, epoch)
        df.unpersist()
        assert sorted(map(tuple, first)) == sorted(stream.rows[epoch]), f"epoch {epoch}"

    query = stream.start(each=each)
    try:
        for _ in range(EPOCHS):
            stream.add()
            query.processAllAvailable()
            none_left()
    finally:
        query.stop()
    spark.stop()
    stream.check()
    print(json.dumps({"executors": len(seen), "epochs": EPOCHS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
