"""A streaming query with a keyed operator; run by test_keyed_failures.py in a process of its own, to be killed.

Every epoch's rows go to `<directory>/rows/<epoch>.json`. If `<directory>/kill-executor` names an epoch, the first task that
sees an answer of that epoch kills its executor (kill -9), whose shuffle files go with it. Every run of a map task leaves an
empty file `<directory>/maps/<epoch>.<attempt>.<pid of its executor>`; only an executor with such a file is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from udo_interface import udo
from udo_interface.java import QUIET, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(name: str, registry: str, node: str, directory: str, master: str) -> None:
    """Process all files there are, from the checkpoint on."""
    home = Path(directory)
    conf = {"spark.udo.registry": registry, "spark.udo.node": node, "spark.executor.memory": "1g"}
    spark = spark_session("keyed", master=master, **QUIET, **conf)
    spark.sparkContext.setLogLevel("OFF")
    for made in ("rows", "maps"):
        (home / made).mkdir(exist_ok=True)
    order = home / "kill-executor"
    doomed = order.read_text() if order.exists() else ""

    def here() -> tuple[str, int]:  # epoch and attempt of the task this runs in
        context = TaskContext.get()
        assert context is not None
        return context.getLocalProperty("streaming.sql.batchId") or "", context.taskAttemptId()

    def executor() -> int:  # the parent of a Python worker is its executor's daemon
        return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])

    def record(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        epoch, attempt = here()
        (home / "maps" / f"{epoch}.{attempt}.{executor()}").touch()
        yield from batches

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pid, (epoch, _) = executor(), here()
            if epoch == doomed and not (home / "killed").exists() and list((home / "maps").glob(f"{epoch}.*.{pid}")):
                (home / "killed").write_text(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
                os.kill(pid, signal.SIGKILL)
            yield batch

    def write(df: DataFrame, epoch: int) -> None:
        draft = home / "rows" / "draft"
        draft.write_text(json.dumps([list(r) for r in df.collect()]))
        draft.rename(home / "rows" / f"{epoch}.json")

    source = spark.readStream.schema("id long, k string").option("maxFilesPerTrigger", 1).parquet(str(home / "in"))
    spread = source.repartition(2).mapInArrow(record, source.schema)
    counted = udo(name)(spread, key="k")
    after = counted.mapInArrow(kill, counted.schema)
    query = after.writeStream.foreachBatch(write).option("checkpointLocation", str(home / "ckpt")).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
