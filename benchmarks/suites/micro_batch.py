"""The fixed cost of a micro-batch: one query without operators and with two chained ones, on either path.

Each query reads parquet files of ROWS rows, one per micro-batch, and writes parquet with a checkpoint on the same disk, like the main job.
The ways take turns, one query each per round; the first micro-batches of a query, in which Spark compiles its plan, are not counted.
The alternative to compare with is a query in which Spark's `mapInArrow` calls two functions that do nothing.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.bringup import platform, say, spark_of
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.suites.state import finish
from udo_interface import local_files, udo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000
SKIPPED = 5
SCHEMA = "id long, card long, amount double, at long"
STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
NONE = "no operator"


@dataclass(frozen=True)
class Scale:
    """The rounds, and the micro-batches of a query that count."""

    rounds: int
    batches: int


FULL, QUICK = Scale(7, 25), Scale(2, 10)


@dataclass(frozen=True)
class Figures:
    """ms by way and step, medians of the rounds."""

    ways: dict[str, dict[str, float]]
    rows: int
    rounds: int
    batches: int
    driver: str


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _in_arrow(df: DataFrame) -> DataFrame:
    return df.mapInArrow(_same, df.schema).mapInArrow(_same, df.schema)


def _calls(path: Literal["python", "jvm"], registry: str) -> Callable[[DataFrame], DataFrame]:
    first, second = (udo(name, path=path, registry=registry) for name in ("first", "second"))
    return lambda df: second(first(df))


def ways(registry: str) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return the ways by their names in the table."""
    return {
        NONE: lambda df: df,
        "two operators": _calls("jvm", registry),
        "two operators, Python path": _calls("python", registry),
        "two functions in mapInArrow": _in_arrow,
    }


def durations(spark: SparkSession, call: Callable[[DataFrame], DataFrame], source: Path, batches: int) -> list[dict[str, int]]:
    """Run a query; return Spark's `durationMs` of each micro-batch that counts. InvalidRun if written rows are missing."""
    with tempfile.TemporaryDirectory(prefix="udo-bench-micro-") as work:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = call(stream).writeStream.format("parquet").option("checkpointLocation", f"{work}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{work}/sink")
        finish(query)
        found = [p["durationMs"] for p in query.recentProgress if p["numInputRows"]]
        written = spark.read.parquet(f"{work}/sink").count()
    if (len(found), written) != (batches, batches * ROWS):
        raise InvalidRun(f"expected {batches} micro-batches of {ROWS} rows, got {len(found)} with {written} rows in all")
    return found[SKIPPED:]


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite."""
    scale = QUICK if quick else FULL
    batches = scale.batches + SKIPPED
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        p.push("forward", "1")
        for name in ("first", "second"):
            p.deploy(name, "forward")
        more = {"spark.udo.node": p.node_socket, "spark.sql.streaming.numRecentProgressUpdates": batches + 1}
        spark = stack.enter_context(spark_of({**more, **local_files.settings()}))
        source = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-files-")))
        write(source, batches, seed)
        contenders = ways(p.registry_url)
        made: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for turn in range(scale.rounds + 1):
            say(f"round {turn} of {scale.rounds}" if turn else "warming up")
            for name, call in contenders.items():
                found = durations(spark, call, source, batches)
                if turn:
                    made[name].append(_medians(found))
    return Figures({name: _medians(rounds) for name, rounds in made.items()}, ROWS, scale.rounds, scale.batches, driver)


def write(directory: Path, batches: int, seed: int) -> None:
    """Write the files of the stream."""
    rng = np.random.default_rng(seed)
    for b in range(batches):
        columns: dict[str, npt.NDArray[Any]] = {"id": np.arange(b * ROWS, (b + 1) * ROWS), "card": rng.integers(0, 1000, ROWS)}
        columns |= {"amount": rng.random(ROWS), "at": np.arange(ROWS)}
        pq.write_table(pa.table(columns), directory / f"{b:03d}.parquet")


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {step: statistics.median(d.get(step, 0) for d in found) for step in ("triggerExecution", *STEPS)}


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    header = ["ms", *f.ways]
    rows = [[step, *(f"{way[step]:.0f}" for way in f.ways.values())] for step in ("triggerExecution", *STEPS)]
    remark = f"Medians of {f.rounds} rounds of {f.batches} micro-batches of {f.rows:,} rows."
    return [Section("One micro-batch by Spark's own clock", header, rows, remark)]
