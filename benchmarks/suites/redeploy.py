"""A new version of an operator in a running Spark stream: by a live update, and by redeploying the query, as is done without UDO.

The same stream, the same function, one Spark session; micro-batches follow each other without pause. The figure is the longest time between
the ends of two of them, from the last one before the request to the first that the new version has answered alone. The redeployed query is
stopped and started again on its checkpoint in the same application: the favourable case, since a new one would start a JVM as well.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.harness.bringup import Platform, platform, say, spark_of, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.suites.update import OPERATOR, VERSIONS, one
from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 5_000
# BLOCKS times, IN_A_BLOCK updates and then as many redeployments.
BLOCKS, QUICK_BLOCKS = 4, 1
IN_A_BLOCK = 3
SETTLE_S, TIMEOUT_S = 2.0, 60.0
Transform = Callable[["DataFrame", str], "DataFrame"]


Summed = tuple[int, ...]


def summed(ids: Sequence[int]) -> Summed:
    """Return the least and the greatest of ids, their number, their sum, and that of their squares: if one or two of so many ids are
    lost and others doubled, these always change."""
    return min(ids), max(ids), len(ids), sum(ids), sum(i * i for i in ids)


@dataclass(frozen=True)
class Done:
    """A completed micro-batch: its epoch, its time (perf_counter), its ids as `summed` returns them, and the versions that answered."""

    epoch: int
    at: float
    ids: Summed
    versions: frozenset[int]


@dataclass(frozen=True)
class Gap:
    """The longest times between two micro-batches, over the changes, in ms."""

    p50: float
    max: float


@dataclass(frozen=True)
class Way:
    """One way to deploy a new version; `usual_ms`: the median time between two micro-batches."""

    gap_ms: Gap
    usual_ms: float
    changes: int


@dataclass(frozen=True)
class Figures:
    """By way."""

    live_update: Way
    redeploy: Way


class Stream:
    """A query that can be started again on its checkpoint. `done`: its completed micro-batches; one that was not committed comes again."""

    def __init__(self, spark: SparkSession, transform: Transform, checkpoint: Path) -> None:
        self._spark, self._transform, self._checkpoint = spark, transform, checkpoint
        self.done: list[Done] = []

    def start(self, version: str) -> None:
        """Continue from the checkpoint, without waiting for the first micro-batch."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load().selectExpr("value AS id")
        writer = self._transform(source, version).writeStream.option("checkpointLocation", str(self._checkpoint))
        self._query = writer.trigger(processingTime="0 seconds").foreachBatch(self._note).start()

    def stop(self) -> None:
        """Stop at once, as Spark does: the micro-batch under way is repeated later."""
        self._query.stop()

    def restart(self, version: str) -> None:
        """Redeploy: stop and start."""
        self.stop()
        self.start(version)

    def _note(self, batch: DataFrame, epoch: int) -> None:
        from pyspark.sql import functions as f

        squares = f.sum(f.col("id") * f.col("id"))
        found = batch.agg(f.min("id"), f.max("id"), f.count("id"), f.sum("id"), squares, f.collect_set("version")).first()
        assert found is not None
        *ids, versions = found
        self.done.append(Done(epoch, time.perf_counter(), tuple(ids), frozenset(versions)))

    def require_clean(self) -> None:
        """InvalidRun unless each micro-batch, also a repeated one, had each of its ids once, and none is missing."""
        for d in self.done:
            first = d.epoch * ROWS_PER_BATCH
            if d.ids != summed(range(first, first + ROWS_PER_BATCH)):
                raise InvalidRun(f"epoch {d.epoch} has ids {d.ids}, expected each of the {ROWS_PER_BATCH} from {first} on once")
        if missing := set(range(max((d.epoch for d in self.done), default=0))) - {d.epoch for d in self.done}:
            raise InvalidRun(f"epochs {sorted(missing)} are missing")

    def gap_ms(self, version: str, change: Callable[[], object]) -> float:
        """Call `change`; return the longest time between two micro-batches until this version answers alone."""
        self._settle()
        asked = time.perf_counter()
        change()
        alone = frozenset([int(version)])
        wait_until(lambda: any(d.at > asked and d.versions == alone for d in list(self.done)), TIMEOUT_S, f"version {version}")
        times = sorted((d.at, d.versions == alone) for d in list(self.done))
        until = next(i for i, (at, new) in enumerate(times) if at > asked and new)
        since = max((i for i, (at, _) in enumerate(times) if at <= asked), default=0)
        return 1000 * max(times[i + 1][0] - times[i][0] for i in range(since, until))

    def usual_ms(self) -> float:
        """Return the median time between two micro-batches."""
        times = sorted(d.at for d in self.done)
        between = sorted(b - a for a, b in zip(times, times[1:], strict=False))
        return 1000 * between[len(between) // 2]

    def _settle(self) -> None:
        seen = len(self.done)
        wait_until(lambda: len(self.done) > seen + 1, TIMEOUT_S, "two micro-batches")
        time.sleep(SETTLE_S)


def _called(df: DataFrame, _: str) -> DataFrame:
    return udo(OPERATOR)(df)


def _native(df: DataFrame, version: str) -> DataFrame:
    """Run the operator's function inside Spark's own worker."""
    number = int(version)

    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            versions = pa.array([number] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("id"), versions], names=["id", "version"])

    return df.mapInArrow(stamp, "id long, version long")


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Measure the longest gap of each change, by way. The seed changes nothing: events are numbered."""
    gaps: dict[str, list[float]] = {"live_update": [], "redeploy": []}
    usual: dict[str, list[float]] = {way: [] for way in gaps}
    with platform(driver) as p, _spark(p) as (spark, work):
        for version in VERSIONS:
            p.push(OPERATOR, version)
        p.deploy(OPERATOR, OPERATOR)
        serving = 0
        for block in range(QUICK_BLOCKS if quick else BLOCKS):
            called, native = Stream(spark, _called, work / f"called{block}"), Stream(spark, _native, work / f"native{block}")
            called.start("")
            for _ in range(IN_A_BLOCK):
                serving = 1 - serving
                gaps["live_update"].append(called.gap_ms(VERSIONS[serving], partial(one, p, VERSIONS[serving])))
            called.stop()
            native.start(VERSIONS[0])
            for i in range(IN_A_BLOCK):
                version = VERSIONS[(i + 1) % 2]
                gaps["redeploy"].append(native.gap_ms(version, partial(native.restart, version)))
            native.stop()
            for way, stream in (("live_update", called), ("redeploy", native)):
                stream.require_clean()
                usual[way].append(stream.usual_ms())
            say(f"block {block + 1}: {gaps['live_update'][-1]:,.0f} ms by a live update, {gaps['redeploy'][-1]:,.0f} ms by redeploying")

    def of(way: str) -> Way:
        gap = Gap(round(sorted(gaps[way])[len(gaps[way]) // 2], 1), round(max(gaps[way]), 1))
        return Way(gap, round(sorted(usual[way])[len(usual[way]) // 2], 1), len(gaps[way]))

    return Figures(of("live_update"), of("redeploy"))


@contextmanager
def _spark(p: Platform) -> Iterator[tuple[SparkSession, Path]]:
    work = Path(tempfile.mkdtemp(prefix="udo-redeploy-"))
    try:
        with spark_of({"spark.udo.node": p.node_socket, "spark.udo.registry": p.registry_url}) as spark:
            yield spark, work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sections(f: Figures) -> list[Section]:
    """A row per way."""
    ways = {"live update, `udo(…)`": f.live_update, "the query stopped and started again, `mapInArrow`": f.redeploy}
    rows = [(text, f"{w.gap_ms.p50:,.0f}", f"{w.gap_ms.max:,.0f}", f"{w.usual_ms:,.0f}") for text, w in ways.items()]
    remark = f"{f.redeploy.changes} changes each; micro-batches of {ROWS_PER_BATCH:,} events; no event lost or doubled."
    return [Section("A new version in a running query", ("by", "longest gap p50, ms", "max", "usual, ms"), rows, remark)]
