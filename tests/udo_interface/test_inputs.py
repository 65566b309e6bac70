"""Operators with several inputs: two streams joined by key and time, or searched for a pattern, whatever dies meanwhile."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.operators.sdks import go
from tests.support.selection import long
from udo_interface import udo
from udo_protocol.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

EXAMPLES = Path(__file__).parents[2] / "examples" / "operators"
BEGIN = dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC)
SYMBOLS = ("A", "B", "C")
EPOCHS = 5
# The number of micro-batches by which the second input is behind the first.
LAG = 2
SCHEMAS = {
    "trades": "symbol string, at timestamp, price double",
    "quotes": "symbol string, at timestamp, bid double, ask double",
    "news": "symbol string, at timestamp, headline string",
}
PLAIN = """
from udo_runtime import operator
@operator
def run(batch):
    return {"input": batch.column("input"), "id": batch.column("id"), "x": batch.column("x"), "y": batch.column("y")}
"""
TWO = {"left": {"id": "int64", "x": "double"}, "right": {"id": "int64", "y": "string"}}
OUT = {"input": "string", "id": "int64", "x": "double", "y": "string"}
Event = dict[str, Any]


def example(platform: Platform, folder: str, version: str = "1") -> str:
    """Push an example operator of the repository under its own name; return the name."""
    manifest = tomllib.loads((EXAMPLES / folder / "operator.toml").read_text("utf-8")) | {"version": version}
    platform.push_folder(EXAMPLES / folder, **manifest)
    return str(manifest["name"])


def in_go(platform: Platform, folder: str, version: str) -> str:
    """Push the same operator as a sample in Go; return the name."""
    manifest = tomllib.loads((EXAMPLES / folder / "operator.toml").read_text("utf-8"))
    del manifest["entry"]
    with tempfile.TemporaryDirectory() as code:
        go(Path(code) / "bin", f"./samples/{folder}")
        platform.push_folder(Path(code), **manifest | {"version": version, "runtime": "exec", "command": [f"bin/{folder}"]})
    return str(manifest["name"])


def made(epoch: int, seed: int, second: str) -> dict[str, list[Event]]:
    """Return events of ten seconds for both inputs, each at a moment of its own, not in order."""
    drawn = random.Random(f"{seed} {epoch} {second}")
    moments = drawn.sample(range(10_000), 45)
    events = [{"symbol": drawn.choice(SYMBOLS), "at": BEGIN + dt.timedelta(seconds=10 * epoch, milliseconds=m)} for m in moments]
    prices = [{**event, "price": round(drawn.uniform(95, 105), 2)} for event in events[:30]]
    if second == "quotes":
        return {"trades": prices, second: [{**event, "bid": float(i), "ask": i + 0.5} for i, event in enumerate(events[30:])]}
    return {"trades": prices, second: [{**event, "headline": f"{epoch}.{i}"} for i, event in enumerate(events[30:])]}


def joined(trades: Sequence[Event], quotes: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Return each trade with the newest quote up to its time, by plain search."""
    found = []
    for trade in trades:
        before = [q for q in quotes if q["symbol"] == trade["symbol"] and q["at"] <= trade["at"]]
        newest = max(before, key=lambda q: q["at"], default={"bid": None, "ask": None})
        found.append((trade["symbol"], trade["at"], trade["price"], newest["bid"], newest["ask"]))
    return sorted(found)


def moved(trades: Sequence[Event], news: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Return, for each piece of news, the first trade within a minute that is 2 % off the last one before the news, by plain search."""
    found = []
    for item in news:
        own = sorted((t for t in trades if t["symbol"] == item["symbol"]), key=lambda t: t["at"])
        before = [t["price"] for t in own if t["at"] < item["at"]]
        if not before:
            continue
        for trade in own:
            if item["at"] <= trade["at"] <= item["at"] + dt.timedelta(minutes=1) and abs(trade["price"] - before[-1]) >= 0.02 * before[-1]:
                found.append((item["symbol"], trade["at"], item["headline"], (trade["price"] - before[-1]) / before[-1]))
                break
    return sorted(found)


class TwoStreams:
    """Files of two inputs, the second of which is behind; each micro-batch takes one file of each."""

    def __init__(self, spark: SparkSession, directory: Path, name: str, second: str) -> None:
        self._spark, self._directory, self._name, self._second = spark, directory, name, second
        self.events: dict[str, list[Event]] = {"trades": [], second: []}
        self.answers: dict[int, list[tuple[Any, ...]]] = {}
        self._late: list[list[Event]] = [[] for _ in range(LAG)]
        self._epoch = 0
        for one in self.events:
            (directory / one).mkdir()

    def add(self, events: Mapping[str, list[Event]]) -> None:
        """Write one file of each input: the new events of the first, and those of the second that were new LAG files ago."""
        for one, new in events.items():
            self.events[one] += new
        self._late.append(events[self._second])
        for one, rows in (("trades", events["trades"]), (self._second, self._late.pop(0))):
            times = {"at": pa.timestamp("us", "UTC"), "price": pa.float64(), "bid": pa.float64(), "ask": pa.float64()}
            names = [column.split()[0] for column in SCHEMAS[one].split(", ")]
            schema = pa.schema([(n, times.get(n, pa.string())) for n in names])
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), self._directory / "draft")
            os.utime(self._directory / "draft", (1_700_000_000 + self._epoch,) * 2)
            (self._directory / "draft").rename(self._directory / one / f"{self._epoch:06}.parquet")
        self._epoch += 1

    def run(self, meanwhile: Any) -> None:
        """Process all files there are; `meanwhile` is called in each epoch, before its answers are collected."""

        def each(df: DataFrame, epoch: int) -> None:
            meanwhile(epoch)
            self.answers[epoch] = [tuple(row) for row in df.collect()]

        def source(one: str) -> DataFrame:
            read = self._spark.readStream.schema(SCHEMAS[one]).option("maxFilesPerTrigger", 1)
            return read.parquet(str(self._directory / one))

        answered = udo(self._name)(trades=source("trades"), **{self._second: source(self._second)}, key="symbol")
        query = answered.writeStream.foreachBatch(each).option("checkpointLocation", str(self._directory / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def found(self) -> list[tuple[Any, ...]]:
        """Return all answers, with times in UTC."""
        rows = [row for epoch in self.answers.values() for row in epoch]
        return sorted((symbol, at.astimezone(dt.UTC), *rest) for symbol, at, *rest in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "second", "oracle", "next_version"),
    [long("trade_quotes", "quotes", joined, in_go), ("news_moves", "news", moved, example)],
)
def test_two_streams_one_of_which_is_behind_while_the_owner_dies_the_version_changes_and_the_query_is_restarted(
    spark: SparkSession, platform: Platform, tmp_path: Path, folder: str, second: str, oracle: Any, next_version: Any
) -> None:
    name, orders = example(platform, folder), random.Random(7)
    platform.deploy(name)
    next_version(platform, folder, "2")
    streams = TwoStreams(spark, tmp_path, name, second)

    def meanwhile(epoch: int) -> None:
        if epoch == 2:
            assert platform.update(name, "2") == "done"
        os.kill(orders.choice(platform.slots(name)).pid, signal.SIGKILL)

    for epoch in range(EPOCHS):
        streams.add(made(epoch, 1, second))
    streams.run(meanwhile)
    for name_ in ("4", ".4.crc"):  # the last epoch is replayed
        (tmp_path / "checkpoint" / "commits" / name_).unlink(missing_ok=True)
    for _ in range(LAG + 1):  # events far ahead in both inputs end all waits
        streams.add({"trades": [{"symbol": "A", "at": BEGIN + dt.timedelta(hours=1), "price": 100.0}], second: []})
    end: Event = {"symbol": "A", "at": BEGIN + dt.timedelta(hours=1)}
    end |= {"bid": 0.0, "ask": 0.0} if second == "quotes" else {"headline": "end"}
    for _ in range(LAG + 2):
        streams.add({"trades": [], second: [end]})
    streams.run(lambda epoch: None)
    expected = oracle(
        *({t["at"]: t for t in streams.events[one] if t["at"] < BEGIN + dt.timedelta(hours=1)}.values() for one in streams.events)
    )
    assert expected, "there is something to find"
    assert streams.found() == expected
    assert [s.version for s in platform.slots(name)] == ["2"]


@pytest.mark.both_paths
def test_an_event_says_its_input_and_has_the_columns_of_that_one(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(PLAIN, input=TWO, output=OUT)
    left, right = spark.createDataFrame([(1, 1.5)], "id int, x float"), spark.createDataFrame([("b", 2)], "y string, id long")
    rows = {tuple(r) for r in udo(name)(left=left, right=right).collect()}
    assert rows == {("left", 1, 1.5, None), ("right", 2, None, "b")}
    together = spark.createDataFrame([("left", 3, 0.5, None)], "input string, id long, x double, y string")
    assert [tuple(r) for r in udo(name)(together).collect()] == [("left", 3, 0.5, None)]


def test_kept_columns_are_those_of_every_input(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(PLAIN, input=TWO, output=OUT)
    left, right = (
        spark.createDataFrame([(1, 1.5, 7)], "id long, x double, k int"),
        spark.createDataFrame([(2, "b", 8)], "id long, y string, k int"),
    )
    assert {(r.id, r.k) for r in udo(name)(left=left, right=right, keep="k").collect()} == {(1, 7), (2, 8)}
    with pytest.raises(
        SchemaError, match=r"keep='x': input 'right' of operator .* has no such column; every input needs a column that is kept"
    ):
        udo(name)(left=left, right=right, keep="x")


def test_calls_that_do_not_fit_are_refused_with_what_to_do(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    name, single = platform.operator(PLAIN, input=TWO, output=OUT), platform.operator()
    left, right = spark.createDataFrame([(1, 1.5)], "id long, x double"), spark.createDataFrame([(2, "b")], "id long, y string")
    with pytest.raises(UsageError, match=r"has several inputs: call it with left=\.\.\., right=\.\.\., or with one DataFrame that has"):
        udo(name)(left)
    with pytest.raises(UsageError, match="takes a DataFrame for each of its inputs: expected left=, right=, got left=, rigth="):
        udo(name)(left=left, rigth=right)
    with pytest.raises(UsageError, match="expects one DataFrame, or one for each input by its name"):
        udo(name)(left, right=right)
    with pytest.raises(UsageError, match="has a single input: call it with one DataFrame, got left="):
        udo(single)(left=left)
    with pytest.raises(SchemaError, match=r"input 'right' of operator .* cannot take this DataFrame: column 'y' \(string\) is missing"):
        udo(name)(left=left, right=right.drop("y"))
    stream = spark.readStream.schema("id long, y string").parquet(str(tmp_path))
    with pytest.raises(UsageError, match="right is a stream, and left is not: expected all inputs as streams, or none"):
        udo(name)(left=left, right=stream)


def test_an_update_keeps_the_inputs(platform: Platform) -> None:
    name = platform.operator(PLAIN, input=TWO, output=OUT)
    other = {"left": TWO["left"], "middle": TWO["right"]}
    platform.push(PLAIN, name=name, version="2", input=other, output=OUT)
    with pytest.raises(
        SchemaError,
        match="events come from the inputs left, right, the new version takes left, middle",
    ):
        platform.update(name, "2")
