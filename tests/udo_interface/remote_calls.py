"""Run by test_three_hosts.py on one of its hosts: calls operators from there.

Arguments: the URL of a node manager on another host, and the number of events. Prints a JSON line for each epoch of a keyed stream, in
which each key below that number comes once; the next epoch begins when a line comes on stdin. The last line has the answers of a client and
of a Spark job that send to that node, and the sums of the stream's epochs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from udo_interface import connect, udo
from udo_interface.java import QUIET, spark_session

EPOCHS = 3
# Tasks that find a host's servers lost are tried again.
MASTER = "local[2,8]"


def by_client(node: str, events: int) -> dict[str, Any]:
    answers: list[int] = []
    with connect("add", node=node) as client:
        client.add_listener(lambda e: answers.append(e["b"]))
        for a in range(events):
            client.send({"a": a})
        client.flush(60)
    return {"sum": sum(answers), "count": len(answers), "in order": answers == sorted(answers)}


def by_job(spark: SparkSession, node: str, events: int) -> dict[str, Any]:
    spark.conf.set("spark.udo.node", node)
    rows = udo("add")(spark.range(0, events, 1, 2).withColumnRenamed("id", "a")).collect()
    spark.conf.unset("spark.udo.node")
    return {"sum": sum(r.b for r in rows), "count": len(rows)}


def by_stream(spark: SparkSession, keys: int) -> dict[int, int]:
    sums: dict[int, int] = {}

    def write(df: DataFrame, epoch: int) -> None:
        if epoch:
            sys.stdin.readline()
        rows = df.collect()
        assert sorted(r.a for r in rows) == list(range(keys))
        sums[epoch] = sum(r.b for r in rows)
        print(json.dumps({"epoch": epoch}), flush=True)

    with tempfile.TemporaryDirectory() as top:
        for _ in range(EPOCHS):
            spark.range(keys).coalesce(1).write.mode("append").parquet(f"{top}/in")
        source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{top}/in").withColumnRenamed("id", "a")
        counted = udo("count", key="a", keep="a")(source)
        plan = counted._jdf.queryExecution().toString()
        assert "~Udo count [" in plan, plan  # the JVM path's logical node: a stream shows no physical plan
        query = counted.writeStream.foreachBatch(write).option("checkpointLocation", f"{top}/checkpoint").start()
        query.processAllAvailable()
        query.stop()
    return sums


if __name__ == "__main__":
    node, events = sys.argv[1], int(sys.argv[2])
    spark = spark_session("remote", MASTER, **QUIET, **{"spark.driver.host": os.environ["SPARK_LOCAL_IP"]})
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, Any] = {"stream": by_stream(spark, events)}
    found |= {"client": by_client(node, events), "job": by_job(spark, node, events)}
    spark.stop()
    print(json.dumps(found))
