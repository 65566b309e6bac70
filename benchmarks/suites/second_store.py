"""The cost of a second state store to a streaming query: micro-batches of a running count per key, without and with one.

The store is beside the checkpoint, on the same disk. Both queries read the same parquet files, one per micro-batch; the first one,
which holds every key, is not counted. They take turns, one each per round, and the first round is dropped. Micro-batches that write deltas
are reported apart from those that write the full state. Before anything is timed, both queries' counts are compared.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.contenders.stateful import Call
from benchmarks.harness.bringup import platform, say, spark_of
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.suites.state import counted, finish, write
from udo_interface import udo
from udo_interface.store.store import FULL_EVERY, parsed

PARTITIONS = 2


@dataclass(frozen=True)
class Scale:
    """The numbers of keys, one after the other, the events of a micro-batch, the counted micro-batches of a query, and the rounds."""

    keys: tuple[int, ...]
    rows: int
    batches: int
    rounds: int


FULL, QUICK = Scale((5_000, 200_000), 20_000, 21, 6), Scale((5_000, 50_000), 5_000, 11, 1)


@dataclass(frozen=True)
class MedianOf:
    """The median ms of this many micro-batches."""

    ms: float
    batches: int


@dataclass(frozen=True)
class OfKeys:
    """One number of keys: micro-batches without a store, and those that write deltas or the full state; file sizes."""

    keys: int
    without: MedianOf
    delta: MedianOf
    full: MedianOf
    full_bytes: int
    delta_bytes: int


@dataclass(frozen=True)
class Figures:
    """By number of keys."""

    scales: list[OfKeys]
    rows: int
    rounds: int
    partitions: int
    driver: str


def _counting(registry: str, store: str | None) -> Call:
    return udo("count", key="card", store=store, registry=registry, path="python")


def durations(spark: SparkSession, registry: str, source: Path, stored: bool) -> tuple[list[float], dict[str, list[int]]]:
    """Run a query; return Spark's ms for each micro-batch, and the sizes in bytes of the store's files by kind."""
    with tempfile.TemporaryDirectory(prefix="udo-bench-ckpt-") as checkpoint:
        stream = spark.readStream.schema("id bigint, card bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = _counting(registry, f"{checkpoint}/udo" if stored else None)(stream).writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        finish(query)
        sizes: dict[str, list[int]] = {"full": [], "delta": []}
        for path in Path(checkpoint).glob("udo/*/*/*/*"):
            if (file := parsed(str(path))) is not None:
                sizes["full" if file.full else "delta"].append(path.stat().st_size)
        return [p["durationMs"]["addBatch"] for p in query.recentProgress if p["numInputRows"]], sizes


def require_same_counts(spark: SparkSession, registry: str, source: Path) -> None:
    """InvalidRun unless the query counts the same with a store as without."""
    with tempfile.TemporaryDirectory(prefix="udo-bench-second-") as store:
        without, with_it = (counted(spark, _counting(registry, at), source) for at in (None, store))
    if without != with_it:
        raise InvalidRun(f"{len(without)} answers without a store, {len(with_it)} with one, and they differ")


def measure(spark: SparkSession, registry: str, source: Path, keys: int, scale: Scale) -> OfKeys:
    """Measure one number of keys: both queries in turn, for all rounds."""
    taken: dict[str, list[float]] = {"without": [], "delta": [], "full": []}
    bytes_of: dict[str, list[int]] = {"delta": [], "full": []}
    for turn in range(scale.rounds + 1):
        say(f"{keys} keys, {f'round {turn} of {scale.rounds}' if turn else 'warming up'}")
        without, _ = durations(spark, registry, source, False)
        with_it, sizes = durations(spark, registry, source, True)
        if not len(without) == len(with_it) == scale.batches + 1:
            raise InvalidRun(f"{len(without)} micro-batches without a store, {len(with_it)} with one, expected {scale.batches + 1}")
        if not turn:
            continue
        taken["without"] += without[1:]
        for epoch, ms in enumerate(with_it[1:], 1):
            taken["delta" if epoch % FULL_EVERY else "full"].append(ms)
        for kind, found in sizes.items():
            bytes_of[kind] += found
    alone, delta, full = (MedianOf(statistics.median(ms), len(ms)) for ms in taken.values())
    full_bytes, delta_bytes = (round(statistics.mean(bytes_of[kind])) for kind in ("full", "delta"))
    return OfKeys(keys, alone, delta, full, full_bytes, delta_bytes)


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite."""
    scale, found = QUICK if quick else FULL, list[OfKeys]()
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        p.push("count", "1")
        p.deploy("count", "count")
        spark = stack.enter_context(spark_of({"spark.sql.shuffle.partitions": PARTITIONS, "spark.udo.node": p.node_socket}))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-store-")))
        for keys in scale.keys:
            source = work / str(keys)
            source.mkdir()
            write(spark, source, keys, scale.rows, scale.batches, seed)
            if not found:
                say("comparing counts")
                require_same_counts(spark, p.registry_url, source)
            found.append(measure(spark, p.registry_url, source, keys, scale))
    return Figures(found, scale.rows, scale.rounds, PARTITIONS, driver)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    header = ["keys", "no store, ms", "of", "delta, ms", "of", "all, ms", "of", "a file: delta", "all"]
    rows = [
        [f"{s.keys:,}", *(text for m in (s.without, s.delta, s.full) for text in (f"{m.ms:.0f}", f"{m.batches:,}"))]
        + [f"{size / 1000:,.0f} KB" for size in (s.delta_bytes, s.full_bytes)]
        for s in f.scales
    ]
    remark = (
        f"Medians of as many micro-batches of {f.rows:,} events as stands beside them, from {f.rounds} rounds in turn, {f.partitions} "
        "partitions."
    )
    return [Section("A micro-batch without and with a second state store", header, rows, remark)]
