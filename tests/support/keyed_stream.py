"""A keyed streaming query over files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from udo_interface import udo
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.udo_interface.conftest import Platform

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"id": event["id"], "k": event["k"], "n": n}
"""

MANIFEST = {
    "entry": "op:Count",
    "key": "k",
    "input": {"id": "int64", "k": "string"},
    "output": {"id": "int64", "k": "string", "n": "int64"},
}
KEYS = 17
Rows = list[tuple[int, str, int]]


def key_of(i: int) -> str:
    return f"k{i * i % KEYS}"


class Stream:
    """A query of the keyed operator over files that appear one by one, each a micro-batch; its answers are in `rows`, by epoch."""

    def __init__(self, spark: SparkSession, directory: Path, operator: str, **options: Any) -> None:
        self._spark, self.directory, self._operator, self._options = spark, directory, operator, options
        self.input = directory / "in"
        self.input.mkdir(parents=True)
        self.files = 0
        self.rows: dict[int, Rows] = {}

    def add(self, rows: int = 40) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        first = self.files * 1000
        ids = list(range(first, first + rows))
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "k": [key_of(i) for i in ids]}), self.directory / "draft")
        os.utime(self.directory / "draft", (1_700_000_000 + self.files,) * 2)
        (self.directory / "draft").rename(self.input / f"{self.files:06}.parquet")
        self.files += 1

    def source(self) -> DataFrame:
        return self._spark.readStream.schema("id long, k string").option("maxFilesPerTrigger", 1).parquet(str(self.input))

    def run(self, after: Callable[[DataFrame], DataFrame] = lambda df: df, each: Callable[[DataFrame, int], Any] | None = None) -> None:
        """Process all present files with a query that starts, or restarts, from the checkpoint."""
        query = self.start(after, each)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def start(
        self, after: Callable[[DataFrame], DataFrame] = lambda df: df, each: Callable[[DataFrame, int], Any] | None = None
    ) -> StreamingQuery:
        counted = after(udo(self._operator)(self.source(), key="k", **self._options))
        return counted.writeStream.foreachBatch(each or self.gather).option("checkpointLocation", str(self.directory / "ckpt")).start()

    def gather(self, df: DataFrame, epoch: int) -> None:
        self.rows[epoch] = [tuple(r) for r in df.collect()]  # type: ignore[misc]

    def check(self, files: int | None = None) -> None:
        """Check that the answers equal those of one process that counts the files in order."""
        counts: Counter[str] = Counter()
        for epoch in range(self.files if files is None else files):
            expected = []
            for i, k, _ in sorted(self.rows[epoch]):
                counts[k] += 1
                expected.append((i, k, counts[k]))
            assert sorted(self.rows[epoch]) == expected, f"epoch {epoch}"
            assert [i for i, _, _ in expected] == list(range(epoch * 1000, epoch * 1000 + len(expected)))


def refuses_asynchronous_progress(stream: Stream, platform: Platform, *, inside: bool) -> None:
    """Check that a keyed call fails before any event in a query with asynchronous progress, and not in another one.

    The call is on the stream, or `inside` its foreachBatch.
    """
    call = udo(stream._operator, key="k")
    stream.add()

    def each(df: DataFrame, epoch: int) -> None:
        call(df).count()

    for directory, options in (("async", {"asyncProgressTrackingEnabled": "true"}), ("sync", {})):
        writer = stream.source().writeStream.foreachBatch(each) if inside else call(stream.source()).writeStream.format("noop")
        writer = writer.options(**options, _asyncProgressTrackingOverrideSinkSupportCheck="true")
        query = writer.option("checkpointLocation", str(stream.directory / directory)).start()
        try:
            if options:
                with pytest.raises(PySparkException, match="op.*keeps state, and this query was started with asyncProgressTrackingEnabled"):
                    query.processAllAvailable()
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        begun = [s.session for s in connect_node(platform.node).sessions(stream._operator).sessions]
        assert (str(query.id) in begun) == (not options), "no event was to reach the operator"
