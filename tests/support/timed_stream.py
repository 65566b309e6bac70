"""A keyed streaming query with timers and a store."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.keyed_stream import Stream, key_of
from tests.udo_interface.conftest import Platform

TIMED = """
import datetime as dt
from udo_runtime import Operator
class Timed(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.timer(event["t"] + dt.timedelta(seconds=7))
        if n % 3 == 0:
            ctx.expire(event["t"] + dt.timedelta(seconds=5))
        yield {"id": event["id"], "k": event["k"], "n": n}
    def on_timer(self, key, at, ctx):
        yield {"id": -int(at.timestamp()), "k": key, "n": ctx.state.get("n", 0)}
"""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MANIFEST: dict[str, Any] = {
    "entry": "op:Timed",
    "key": "k",
    "input": {"id": "int64", "k": "string", "t": "timestamp[us, tz=UTC]"},
    "output": {"id": "int64", "k": "string", "n": "int64"},
    "event_time": {"column": "t", "delay_s": 2},
}
BEGIN = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)


class Timed(Stream):
    """A stream whose files are 4 seconds of event time apart; some keys pause. Its answers are compared with another query's."""

    def add(self, rows: int = 30) -> None:
        first = self.files * 1000
        ids = [i for i in range(first, first + rows) if i % 5 != self.files % 5]
        at = [BEGIN + dt.timedelta(seconds=4 * self.files + i % 3) for i in ids]
        table = pa.table({"id": ids, "k": list(map(key_of, ids)), "t": pa.array(at, pa.timestamp("us", "UTC"))})
        pq.write_table(table, self.directory / "draft")
        os.utime(self.directory / "draft", (1_700_000_000 + self.files,) * 2)
        (self.directory / "draft").rename(self.input / f"{self.files:06}.parquet")
        self.files += 1

    def source(self) -> DataFrame:
        schema = "id long, k string, t timestamp"
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.input))

    @property
    def checkpoint(self) -> Path:
        return self.directory / "ckpt"

    def session(self) -> Path:
        """The query's directory in the store."""
        [found] = (self.checkpoint / "udo").glob("*/*")
        return found

    def lose_commit(self) -> None:
        """Restore Spark's checkpoint to before the commit of the last epoch."""
        for name in (f"{self.files - 1}", f".{self.files - 1}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def answers(self) -> dict[int, list[tuple[int, str, int]]]:
        return {e: sorted(rows) for e, rows in self.rows.items()}


@contextmanager
def on(spark: SparkSession, platform: Platform, partitions: int = 2) -> Iterator[None]:
    """Let calls and tasks use this platform within the block."""
    wanted = {"spark.udo.registry": platform.url, "spark.udo.node": platform.node, "spark.sql.shuffle.partitions": str(partitions)}
    before = {k: spark.conf.get(k) for k in wanted}
    for k, v in wanted.items():
        spark.conf.set(k, v)
    try:
        yield
    finally:
        for k, v in before.items():
            spark.conf.set(k, v or "")


def uninterrupted(stream: Timed, spark: SparkSession, tmp_path: Path) -> dict[int, list[tuple[int, str, int]]]:
    """The answers of an undisturbed query over the same files, without a store."""
    other = Timed(spark, tmp_path / "oracle", stream._operator)
    for _ in range(stream.files):
        other.add()
    other.run()
    answers = other.answers()
    assert sum(i < 0 for rows in answers.values() for i, _, _ in rows) > 10, "timers were to fire"
    return answers
