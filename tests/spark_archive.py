"""Writes the classes that a Spark session loads to a file which the JVMs of the tests map: they start in half the time.

`python -m tests.spark_archive FILE`. Without a Java that can do it there is no such file, and the tests take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from udo_interface.java import QUIET, spark_session
from udo_protocol.errors import Unavailable

# A session that ends at once, and writes an archive of 100 MB meanwhile.
EXIT_S = 120


def main(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    try:
        spark = spark_session("archive", **QUIET)
    except Unavailable as e:
        print(f"no archive of Spark's classes: {e}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as name:
        source = f"{name}/in"
        spark.range(100).selectExpr("id", "id % 7 AS k").write.json(source)
        columns = "id long, k long"
        events = spark.readStream.schema(columns).json(source).repartition("k").mapInArrow(lambda batches: batches, columns)
        query = events.writeStream.foreachBatch(lambda df, _: df.groupBy("k").count().collect())
        query.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start().awaitTermination()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
    jvm.stdin.close()  # it ends, and writes the archive as it does
    jvm.wait(EXIT_S)
    if new.exists():
        new.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
