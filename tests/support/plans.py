"""Ordinary plans around a keyed call, and the answers of a plain process that counts in order."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.chaos import plans
from benchmarks.chaos.plans import Evaluate, Shape
from tests.support.keyed_stream import key_of
from udo_interface import udo
from udo_interface.spark import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, str, int]
# The key of the rows of a static table beside a stream; no event has it.
OTHER = "other"


def static(df: DataFrame) -> DataFrame:
    """A table without any of the stream's keys."""
    return df.sparkSession.range(4).selectExpr("id", f"'{OTHER}' k", "0L n")


def keys(df: DataFrame) -> DataFrame:
    """A table with each key of the stream once."""
    return df.sparkSession.createDataFrame([(key_of(i),) for i in range(17)], "k string").distinct()


# Applied after the call, to its answers (id, k, n): each answer comes out once.
BEHIND: dict[str, Shape] = {
    **plans.BEHIND,
    "repartition": lambda df: df.repartition(3),
    "columns": lambda df: df.selectExpr("n + 0 as n", "k", "id").select("id", "k", "n"),
    "join, broadcast": lambda df: df.join(F.broadcast(keys(df)), "k").select("id", "k", "n"),
    "join, sort-merge": lambda df: df.join(keys(df).hint("merge"), "k").select("id", "k", "n"),
    "drop duplicates": lambda df: df.dropDuplicates(["id"]),
    "watermark": lambda df: df.withColumn("t", F.timestamp_seconds("id")).withWatermark("t", "1 day").drop("t"),
}
# Applied before the call, to the events (id, k).
BEFORE: dict[str, Shape] = {
    **plans.BEFORE,
    "repartition": lambda df: df.repartition(3),
    "join, broadcast": lambda df: df.join(F.broadcast(keys(df)), "k"),
    "union": lambda df: df.where("id % 2 = 0").union(df.where("id % 2 = 1")),
    "drop duplicates": lambda df: df.dropDuplicates(["id"]),
}


def _two_sinks(df: DataFrame) -> list[Any]:
    df.write.format("noop").mode("overwrite").save()
    return df.collect()


def _is_empty_first(df: DataFrame) -> list[Any]:
    return [] if df.isEmpty() else df.collect()


def _cached(df: DataFrame) -> list[Any]:
    df.persist()
    try:
        with ThreadPoolExecutor(2) as pool:  # two branches of the cached frame at once
            first, second = pool.map(lambda _: df.collect(), range(2))
        assert sorted(first) == sorted(second)
        return first
    finally:
        df.unpersist()


def _in_turns(df: DataFrame) -> list[Any]:
    df.count()
    df.limit(1).collect()
    return df.collect()


IN_THREADS = ("in a thread", "cached, by two threads")
# Applied in foreachBatch, to a DataFrame of answers.
INSIDE: dict[str, Evaluate] = {
    **plans.EVALUATED,
    "isEmpty first": _is_empty_first,
    "cached, by two threads": _cached,
    "in turns": _in_turns,
    "two sinks": _two_sinks,
    "sorted": lambda df: df.orderBy("k", "id").collect(),
    "union with a table on its left": lambda df: [r for r in static(df).union(df).collect() if r.k != OTHER],
    "union with a table on its right": lambda df: [r for r in df.union(static(df)).collect() if r.k != OTHER],
    "joined": lambda df: df.join(keys(df).hint("merge"), "k").select("id", "k", "n").collect(),
    "as an RDD": lambda df: df.rdd.map(tuple).collect(),
}


@dataclass(frozen=True)
class Plan:
    """A keyed query. `called`: on the `stream`, or `inside` foreachBatch; `epochs`: the number of events in each."""

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    inside: str = "collected"
    called: str = "stream"
    partitions: tuple[int, int] = (2, 2)  # of the first run, and of the one after a restart
    adaptive: bool = True
    epochs: tuple[tuple[int, ...], ...] = ((40, 40), (40,))  # for each run, those of its epochs
    rows_per_batch: int = 10_000  # the most in a batch that Spark hands to its workers
    path: str = settings.PYTHON

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """Draw a plan, the same for the same seed."""
        rng = random.Random(seed)

        def some(of: dict[str, Shape]) -> tuple[str, ...]:
            stateful = {"drop duplicates"}  # at most one in a query: a limit of Spark
            return tuple(name for name in rng.sample([n for n in of if n not in stateful or rng.random() < 0.3], rng.randrange(3)))

        before, behind = some(BEFORE), some(BEHIND)
        if "drop duplicates" in before:
            behind = tuple(name for name in behind if name not in ("drop duplicates", "watermark"))
        return cls(
            before,
            behind,
            rng.choice(list(INSIDE)),
            rng.choice(["stream", "stream", "inside"]),
            (rng.choice([1, 2, 3, 8]), rng.choice([1, 2, 3, 8])),
            rng.random() < 0.5,
            tuple(tuple(rng.choice([0, 1, 12, 40]) for _ in range(rng.randint(1, 3))) for _ in range(2)),
            rng.choice([3, 10_000]),
            rng.choice([settings.PYTHON, settings.AUTO]),
        )


@dataclass
class Planned:
    """A plan over files that appear one by one, each a micro-batch."""

    spark: SparkSession
    directory: Path
    operator: str
    plan: Plan
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    sent: list[list[Row]] = field(default_factory=list)

    def run(self) -> None:
        """Run all of its epochs, with a restart between the runs."""
        (self.directory / "in").mkdir(parents=True)
        for sizes, partitions in zip(self.plan.epochs, self.plan.partitions, strict=True):
            for size in sizes:
                self._add(size)
            changed = {
                "spark.sql.shuffle.partitions": str(partitions),
                "spark.sql.adaptive.enabled": str(self.plan.adaptive).lower(),
                "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.plan.rows_per_batch),
            }
            with configured(self.spark, changed):
                query = self._query()
                try:
                    query.processAllAvailable()
                finally:
                    query.stop()

    def check(self) -> None:
        """Check that in each epoch each key has the counts that follow those of the epochs before."""
        counted: Counter[str] = Counter()
        for epoch, sent in enumerate(self.sent):
            answers = self.rows.get(epoch, [])
            assert sorted(i for i, _, _ in answers) == sorted(i for i, _, _ in sent), f"epoch {epoch} of {self.plan}"
            of_key: defaultdict[str, list[int]] = defaultdict(list)
            for _, key, n in answers:
                of_key[key].append(n)
            for key, numbers in of_key.items():
                first = counted[key] + 1
                assert sorted(numbers) == list(range(first, first + len(numbers))), f"epoch {epoch}, key {key} of {self.plan}"
            counted.update(key for _, key, _ in sent)

    def _add(self, size: int) -> None:
        number = len(self.sent)
        ids = list(range(1000 * number, 1000 * number + size))
        draft = self.directory / "draft"
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array([key_of(i) for i in ids], pa.string())}), draft)
        os.utime(draft, (1_700_000_000 + number,) * 2)
        draft.rename(self.directory / "in" / f"{number:06}.parquet")
        self.sent.append([(i, key_of(i), 0) for i in ids])

    def _query(self) -> Any:
        events = self.spark.readStream.schema("id long, k string").option("maxFilesPerTrigger", 1).parquet(str(self.directory / "in"))
        given = shaped(events, BEFORE, self.plan.before) if self.plan.called == "stream" else events
        counted = self._counted(given) if self.plan.called == "stream" else given

        def each(df: DataFrame, epoch: int) -> None:
            made = df if self.plan.called == "stream" else self._counted(shaped(df, BEFORE, self.plan.before))
            self.rows[epoch] = [tuple(r) for r in INSIDE[self.plan.inside](made)]  # type: ignore[misc]

        return counted.writeStream.foreachBatch(each).option("checkpointLocation", str(self.directory / "ckpt")).start()

    def _counted(self, df: DataFrame) -> DataFrame:
        return shaped(udo(self.operator)(df, key="k", path=self.plan.path, **self.options), BEHIND, self.plan.behind)


def shaped(df: DataFrame, shapes: dict[str, Shape], names: Sequence[str]) -> DataFrame:
    """Apply these shapes to `df`, in order."""
    for name in names:
        df = shapes[name](df)
    return df


@contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Let the session have these settings within the block."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
