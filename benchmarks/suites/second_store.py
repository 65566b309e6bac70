"""The cost of a second state store to a streaming query: micro-batches of a running count per key, without and with one.

The store is beside the checkpoint, on the same disk. Both queries read the same parquet files, one per micro-batch; the first one,
which holds every key, is not counted. Micro-batches that write deltas are reported apart from those that write the full state.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.harness.bringup import platform, say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.suites.state import finish, write
from udo_interface import udo
from udo_interface.java import QUIET, spark_session
from udo_interface.store.store import FULL_EVERY, parsed

PARTITIONS = 2


@dataclass(frozen=True)
class Scale:
    """The numbers of keys, one after the other, the events of a micro-batch, and the micro-batches."""

    keys: tuple[int, ...]
    rows: int
    batches: int


FULL, QUICK = Scale((5_000, 200_000), 20_000, 21), Scale((5_000, 50_000), 5_000, 11)


@dataclass(frozen=True)
class OfKeys:
    """One number of keys: ms of a micro-batch without a store, and of those that write deltas or all; the sizes of the files."""

    keys: int
    without_ms: float
    delta_ms: float
    full_ms: float
    full_bytes: int
    delta_bytes: int


@dataclass(frozen=True)
class Figures:
    """By number of keys."""

    scales: list[OfKeys]
    rows: int
    batches: int
    partitions: int
    driver: str


def durations(spark: SparkSession, registry: str, source: Path, stored: bool) -> tuple[list[float], dict[str, list[int]]]:
    """Run a query; return Spark's ms for each micro-batch, and the sizes in bytes of the store's files by kind."""
    with tempfile.TemporaryDirectory(prefix="udo-bench-ckpt-") as checkpoint:
        stream = spark.readStream.schema("id bigint, card bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
        counted = udo("count", key="card", store=f"{checkpoint}/udo" if stored else None, registry=registry, path="python")(stream)
        query = counted.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        finish(query)
        sizes: dict[str, list[int]] = {"full": [], "delta": []}
        for path in Path(checkpoint).glob("udo/*/*/*/*"):
            if (file := parsed(str(path))) is not None:
                sizes["full" if file.full else "delta"].append(path.stat().st_size)
        return [p["durationMs"]["addBatch"] for p in query.recentProgress if p["numInputRows"]], sizes


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite."""
    scale, found = QUICK if quick else FULL, list[OfKeys]()
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        p.push("count", "1")
        p.deploy("count", "count")
        spark = spark_session(
            "udo benchmarks", "local[2]", **QUIET, **{"spark.sql.shuffle.partitions": PARTITIONS, "spark.udo.node": p.node_socket}
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-store-")))
        for keys in scale.keys:
            (work / str(keys)).mkdir()
            write(spark, work / str(keys), keys, scale.rows, scale.batches, seed)
            if not found:
                say("warming up Spark")
                durations(spark, p.registry_url, work / str(keys), True)
            say(f"{keys} keys")
            without, _ = durations(spark, p.registry_url, work / str(keys), False)
            with_it, sizes = durations(spark, p.registry_url, work / str(keys), True)
            if len(without) != len(with_it):
                raise InvalidRun(f"{len(without)} micro-batches without a store, {len(with_it)} with one")
            found.append(
                OfKeys(
                    keys=keys,
                    without_ms=statistics.median(without[1:]),
                    delta_ms=statistics.median(with_it[e] for e in range(1, len(with_it)) if e % FULL_EVERY),
                    full_ms=statistics.median(with_it[e] for e in range(FULL_EVERY, len(with_it), FULL_EVERY)),
                    full_bytes=round(statistics.mean(sizes["full"])),
                    delta_bytes=round(statistics.mean(sizes["delta"])),
                )
            )
    return Figures(found, scale.rows, scale.batches, PARTITIONS, driver)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    header = ["keys", "no store, ms", "delta, ms", "all, ms", "a file: delta", "all"]
    rows = [
        [f"{s.keys:,}", *(f"{ms:.0f}" for ms in (s.without_ms, s.delta_ms, s.full_ms))]
        + [f"{size / 1000:,.0f} KB" for size in (s.delta_bytes, s.full_bytes)]
        for s in f.scales
    ]
    remark = f"Medians of {f.batches} micro-batches of {f.rows:,} events, {f.partitions} partitions."
    return [Section("A micro-batch without and with a second state store", header, rows, remark)]
