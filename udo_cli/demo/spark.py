"""The demo's Spark: starts it quietly, builds the query, and ends everything, including processes that Spark leaves behind."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from udo_cli.platform.local import arm, tail
from udo_interface import local_files
from udo_interface.java import QUIET, spark_session
from udo_protocol.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

from udo_cli.demo.source import FILES_PER_BATCH

_STOP_S = 15.0


@contextlib.contextmanager
def session(registry: str, node: str, work: Path) -> Iterator[SparkSession]:
    """A local session that finds this registry and node; Java's output goes to `work`/spark.log."""
    settings: dict[str, Any] = {
        "spark.udo.registry": registry,
        "spark.udo.node": node,
        "spark.local.dir": str(work / "spark"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": 1000,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as Arrow writes them
        **local_files.settings(),
    }
    # py4j logs calls that Ctrl-C cuts short, with useless tracebacks.
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    before = set(psutil.Process().children(recursive=True))
    try:
        with _output_to(work / "spark.log"):
            spark = spark_session("udo demo", **QUIET, **settings)
        arm()
        yield spark
    except (PySparkException, Py4JError) as e:  # its text lives in Java: read it while Java runs
        said = e.java_exception.toString() if isinstance(e, Py4JJavaError) else str(e)
        raise OperatorError(f"Spark failed: {said}\n{tail(work / 'spark.log')}".rstrip()) from None
    finally:
        _end()
        _kill(set(psutil.Process().children(recursive=True)) - before)


def query(spark: SparkSession, scored: DataFrame, work: Path) -> StreamingQuery:
    """Start the stream into a file sink, which counts what it has committed."""
    writer = scored.writeStream.queryName("demo").format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(processingTime="0 seconds").start(str(work / "sink"))


def payments(spark: SparkSession, schema: StructType, landing: Path) -> DataFrame:
    """The stream of files in `landing`; each micro-batch takes one file per task."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(landing))


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr of this process, and of processes started within the block, to `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for number, saved in enumerate(kept, start=1):
            os.dup2(saved, number)
            os.close(saved)


def _end() -> None:
    """Stop Spark and wait for its Java to be gone; PySpark by itself leaves that to the end of Python."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    with contextlib.suppress(Exception):  # a stop that was interrupted half-way must not keep Java alive
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if java is not None:
        with contextlib.suppress(OSError):
            if java.stdin:
                java.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            java.wait(_STOP_S)


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes that Spark has started and left, e.g. because it was interrupted while it started."""
    for process in (listed := list(processes)):
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(listed, timeout=5)
