"""One seed's streaming query on Spark: usually a file per epoch, through the keyed operator, into a dict of rows by epoch.

The faults come from the seed: tasks that raise, workers that die, queries stopped in the middle of a batch, commits
that are lost, other numbers of partitions, evaluations that are repeated or cut short, and faults of the platform.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.chaos.attempt import EVENTS, Rows
from benchmarks.chaos.judge import Mismatch, Stuck, judge
from benchmarks.chaos.kinds import Kind
from benchmarks.chaos.plans import BEFORE, BEHIND, EVALUATED
from benchmarks.chaos.query import events_of, keys_of
from udo_interface import udo
from udo_interface.spark import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, id long, kind string, t timestamp_ntz"
STUCK_S = 150.0
# Errors that no fault here may cause.
_ILLEGAL = ("ProtocolError", "StateLost", "TwoProducers", "SchemaError")
Fault = Callable[[random.Random], None]


@dataclass(frozen=True)
class Called:
    """The deployment that a query calls, its kind, and its node's home. `front`: a stateless one that the events pass first, on the JVM
    path; '' for none."""

    deployment: str
    kind: Kind
    node_home: Path
    front: str


class StreamingQuery:
    """A query; `run` raises a Mismatch that says what differs. `fault` breaks a part of the platform meanwhile; `stood_still_s`: how long
    the platform has been stopped so far."""

    def __init__(
        self, spark: SparkSession, directory: Path, called: Called, seed: int, fault: Fault, stood_still_s: Callable[[], float]
    ) -> None:
        self._spark, self._dir, self._called = spark.newSession(), directory, called
        self._fault, self._stood_still_s = fault, stood_still_s
        self.rng = rng = random.Random(seed)
        keys = keys_of(rng)
        self._files = [events_of(rng, e, keys) for e in range(rng.randrange(3, 6))]  # one per epoch, or after a stop several
        self._wrong = {e: rng.choice(("raise", "raise at once", "exit", "", "")) for e in range(len(self._files))}
        # For an operator that rolls dice the last evaluation counts, and under a limit tasks may still complete.
        how = ("", "", "twice", "limit first", "" if called.kind.chained else "limit after")
        self._evaluation = {e: rng.choice(how) for e in range(len(self._files))}
        self._stop_at = {e: rng.random() * 0.5 for e in range(len(self._files)) if rng.random() < 0.2}
        self._break_at = {e for e in range(len(self._files)) if rng.random() < 0.75}
        names = (BEFORE, BEHIND, EVALUATED)
        self._before, self._behind, self._collect = (rng.choice(list(of)) if rng.random() < 0.7 else next(iter(of)) for of in names)
        self._adaptive = rng.random() < 0.5
        self._path = rng.choice((settings.PYTHON, settings.JVM))
        self._rows: dict[int, Rows] = {}
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.runs = 0
        self._failure = ""
        self._started = time.monotonic()

    def run(self) -> None:
        """Run all epochs, with as many starts as it takes, then judge."""
        self._write()
        replayed = False
        while True:
            if time.monotonic() - self._started - self._stood_still_s() > STUCK_S:
                raise Stuck(f"stuck for {STUCK_S:g} s")
            self._start_once()
            epochs = committed(self._dir / "ckpt")
            if sum(map(len, epochs)) < len(self._files):
                continue
            if replayed or self.rng.random() < 0.5:
                break
            replayed = True
            self._lose_commit(len(epochs) - 1)
        if len(epochs) < len(self._files):
            self._did("several files in an epoch")
        events = [[event for file in files for event in self._files[int(file)]] for files in epochs]
        session = json.loads((self._dir / "ckpt" / "metadata").read_text())["id"]
        judge(self._called.kind, events, self._rows, self._called.node_home, self._called.deployment, session)

    def _write(self) -> None:
        (self._dir / "in").mkdir(parents=True)
        for number, events in enumerate(self._files):
            columns = [pa.array([e[f.name] for e in events], f.type) for f in EVENTS]
            draft = self._dir / "draft"
            pq.write_table(pa.Table.from_arrays(columns, schema=EVENTS), draft)
            os.utime(draft, (1_700_000_000 + number,) * 2)
            draft.rename(self._dir / "in" / f"{number:06}.parquet")

    def _lose_commit(self, epoch: int) -> None:
        for name in (str(epoch), f".{epoch}.crc"):
            (self._dir / "ckpt" / "commits" / name).unlink(missing_ok=True)
        self._did("commit lost")

    def _start_once(self) -> None:
        self.runs += 1
        partitions = self.rng.randrange(1, 5)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        self._spark.conf.set("spark.sql.adaptive.enabled", str(self._adaptive).lower())
        plan = f"{self._before} before, {self._behind} behind, {self._collect}, adaptive: {self._adaptive}, path: {self._path}"
        self._log(f"start {self.runs} with {partitions} partitions: {plan}")
        try:
            source = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._dir / "in"))
            if self._called.front:
                source = udo(self._called.front, path="jvm")(source)
            df = BEHIND[self._behind](udo(self._called.deployment)(BEFORE[self._before](source), key="k", path=self._path))
            df = df.mapInArrow(_wrong(self._wrong, self.rng.randrange(partitions)), df.schema)
            self._query = df.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self._dir / "ckpt")).start()
            try:
                self._query.processAllAvailable()
            finally:
                self._query.stop()
        except Exception as e:
            text, self._failure = self._failure or str(e), ""
            self._log(f"query failed: {type(e).__name__}: {text[-300:]}")
            if any(f"errors.{name}" in text for name in _ILLEGAL):
                raise Mismatch(text) from e
            self.faults["query failed"] += 1
            time.sleep(0.3)

    def _batch(self, df: DataFrame, epoch: int) -> None:
        try:
            self._evaluate(df, epoch)
        except Exception as e:
            self._failure = str(e)
            # Spark parses the text of an exception raised here with a regular expression that overflows its stack on a long text.
            raise RuntimeError("the evaluation failed") from None

    def _evaluate(self, df: DataFrame, epoch: int) -> None:
        self._log(f"epoch {epoch}")
        if epoch in self._break_at:
            self._break_at.discard(epoch)
            self._fault(self.rng)
        if (after_s := self._stop_at.pop(epoch, None)) is not None:
            self._did("query stopped in a batch")
            Timer(after_s, self._query.stop).start()
        how = self._evaluation[epoch]
        if how == "limit first":
            df.limit(1).collect()
        collect = EVALUATED[self._collect]
        rows = collect(df)
        if how == "twice":
            rows = collect(df)
        elif how == "limit after":
            df.limit(1).collect()
        if how:
            self._did(f"evaluated: {how}")
        self._did(f"keyed call on the {self._path} path")
        for kind, name in (("before", self._before), ("behind", self._behind), ("in foreachBatch", self._collect)):
            self._did(f"plan: {name} {kind}")
        if wrong := self._wrong[epoch]:
            self._did(f"task: {wrong}")
        self._rows[epoch] = [r.asDict() for r in rows]

    def _did(self, kind: str) -> None:
        self.faults[kind] += 1
        self._log(kind)

    def _log(self, text: str) -> None:
        self.trace.append(f"{time.monotonic() - self._started:7.3f} {text}")


def committed(checkpoint: Path) -> list[list[str]]:
    """The files of each committed epoch of a query with one file source, as the source has logged them: without suffix, in order.

    Spark chooses the epoch of a file: stopped between the source's entry for the file and its own entry for the epoch, it takes that
    file and the next one together.
    """
    files = {}
    for number, entry in _entries(checkpoint / "sources" / "0").items():  # too few for the source to compact them
        files[number] = [Path(json.loads(line)["path"]).stem for line in entry[1:]]
    ends = [json.loads(entry[-1])["logOffset"] for entry in _entries(checkpoint / "offsets").values()]
    committed_ends = ends[: len(_entries(checkpoint / "commits"))]
    return [[f for n in range(begin + 1, end + 1) for f in files[n]] for begin, end in pairwise([-1, *committed_ends])]


def _entries(log: Path) -> dict[int, list[str]]:
    """Return the lines of each entry of one of Spark's logs, in order."""
    return {int(p.name): p.read_text().splitlines() for p in sorted(log.glob("[0-9]*"), key=lambda p: int(p.name))}


def _wrong(plan: dict[int, str], partition: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step after the operator in which the first attempt of one task of each epoch fails as planned."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        mine = context.attemptNumber() == 0 and context.partitionId() == partition
        wrong = plan.get(epoch, "") if mine else ""
        for batch in batches:
            if wrong == "raise at once":
                raise RuntimeError("a step downstream fails at the first answers")
            if wrong == "exit":
                os._exit(1)
            yield batch
        if wrong == "raise":
            raise RuntimeError("a step downstream fails at the end")

    return step
