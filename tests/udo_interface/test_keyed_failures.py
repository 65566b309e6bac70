"""Keyed operators when Spark itself fails or is stopped within an epoch: every epoch still counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.conftest import bound, wait_until
from tests.support.keyed_stream import COUNT, MANIFEST, Rows, Stream, key_of
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.errors import Stale
from udo_protocol.formats.schema import GROUP_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
QUERY_TIMEOUT_S = 120
# COUNT, which is held at one event in the middle of epoch 1 until the gate is open.
GATED = """
import pathlib, time
from udo_runtime import Operator
gate = pathlib.Path({gate!r})
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["id"] == 1020:
            print("in the middle of epoch 1", flush=True)
            deadline = time.monotonic() + 60
            while not gate.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
        yield {{"id": event["id"], "k": event["k"], "n": n}}
"""


class Gate:
    """An operator that reports when it is in the middle of epoch 1, and goes on when the gate is open."""

    def __init__(self, platform: Platform) -> None:
        self._platform, self._sign = platform, platform.sign()
        self.operator = platform.operator(GATED.format(gate=str(self._sign)), **MANIFEST)

    def wait_for_epoch(self) -> None:
        wait_until(lambda: self._platform.said(self.operator, "middle of epoch 1"), QUERY_TIMEOUT_S, "the operator to be in epoch 1")

    def open(self) -> None:
        self._sign.touch()


@pytest.fixture(scope="module")
def count(platform: Platform) -> str:
    return platform.operator(COUNT, **MANIFEST)


@pytest.fixture
def gate(platform: Platform) -> Iterator[Gate]:
    gate = Gate(platform)
    yield gate
    gate.open()


@contextmanager
def query(platform: Platform, operator: str, home: Path, master: str) -> Iterator[subprocess.Popen[str]]:
    """Run keyed_query.py in a process group of its own, which is killed at the end."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))}
    env |= {"PYTHONPATH": str(ROOT), "SPARK_WORKER_DIR": str(home / "work")}
    command = [sys.executable, "-m", "tests.udo_interface.keyed_query", operator, platform.url, platform.node, str(home), master]
    with (home / "log").open("a") as log:
        p = subprocess.Popen(
            command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True
        )
    try:
        yield p
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
        p.wait(bound(10))


def finish(platform: Platform, operator: str, home: Path, master: str) -> None:
    with query(platform, operator, home, master) as p:
        assert p.wait(bound(QUERY_TIMEOUT_S)) == 0, (home / "log").read_text()[-3000:]


def check(epochs: dict[int, Rows], files: int, rows: int = 40) -> None:
    """Compare with a plain count of the files; within an epoch a key's events may come in any order."""
    counts: Counter[str] = Counter()
    for epoch in range(files):
        ids = range(epoch * 1000, epoch * 1000 + rows)
        assert sorted((i, k) for i, k, _ in epochs[epoch]) == [(i, key_of(i)) for i in ids], f"epoch {epoch}"
        expected = []
        for k in map(key_of, ids):
            counts[k] += 1
            expected.append((k, counts[k]))
        assert sorted((k, n) for _, k, n in epochs[epoch]) == sorted(expected), f"epoch {epoch}"


def written(home: Path) -> dict[int, Rows]:
    return {int(f.stem): [tuple(r) for r in json.loads(f.read_text())] for f in (home / "rows").glob("*.json")}


def test_a_driver_killed_in_the_middle_of_an_epoch_and_started_again_counts_once(
    spark: SparkSession, platform: Platform, gate: Gate, tmp_path: Path
) -> None:
    operator = gate.operator
    stream = Stream(spark, tmp_path, operator)
    for _ in range(3):
        stream.add()
    with query(platform, operator, tmp_path, "local[2,2]") as p:
        gate.wait_for_epoch()
        os.killpg(p.pid, signal.SIGKILL)
        assert p.wait(bound(10)) == -signal.SIGKILL
    assert set(written(tmp_path)) == {0}
    gate.open()
    finish(platform, operator, tmp_path, "local[2,2]")
    check(written(tmp_path), 3)


def test_an_executor_killed_with_its_shuffle_files_counts_once(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    operator = platform.operator(COUNT, **MANIFEST)
    stream = Stream(spark, tmp_path, operator)
    for _ in range(3):
        stream.add()
    (tmp_path / "kill-executor").write_text("1")
    finish(platform, operator, tmp_path, "local-cluster[2,1,1024]")
    assert "CoarseGrainedExecutorBackend" in (tmp_path / "killed").read_text()
    maps = Counter(f.name.split(".")[0] for f in (tmp_path / "maps").iterdir())
    assert maps["0"] == 2
    assert maps["1"] > 2, "the stage before the shuffle was to run again"
    check(written(tmp_path), 3)


def test_a_query_stopped_in_the_middle_of_a_batch_and_started_again_counts_once(spark: SparkSession, gate: Gate, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, gate.operator)
    for _ in range(3):
        stream.add()
    stopped = stream.start()
    try:
        gate.wait_for_epoch()
    finally:
        stopped.stop()
    assert set(stream.rows) == {0}
    gate.open()
    stream.run()
    stream.check()


SENT = pa.schema([("id", pa.int64()), ("k", pa.string()), (GROUP_COLUMN, pa.int32())])
ANSWERS = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int64())])


@contextmanager
def attempt(platform: Platform, operator: str, session: str, epoch: int, number: int) -> Iterator[SplitExchange]:
    """Open an attempt at partition 0 as a Spark task does, with one frame under way."""
    request = Request(operator, session, 0, number, epoch, keyed=KeyedCall("run", "call", (0,)))
    with conversations(platform.node, request, SENT, ANSWERS) as (lanes, opened):
        yield SplitExchange(lanes, opened.group_slots or (0,), 1)


def batches(epoch: int) -> Iterator[tuple[pa.RecordBatch, None]]:
    """Yield the 40 events of an epoch in 4 batches."""
    for first in range(epoch * 1000, epoch * 1000 + 40, 10):
        ids = range(first, first + 10)
        yield pa.record_batch([pa.array(ids), pa.array(map(key_of, ids)), pa.array([0] * 10, pa.int32())], schema=SENT), None


def rows(answers: Iterable[tuple[object, pa.RecordBatch]]) -> Rows:
    return [(r["id"], r["k"], r["n"]) for _, answer in answers for r in answer.to_pylist()]


@pytest.mark.short
@pytest.mark.parametrize("older", [1, 3])
@pytest.mark.parametrize("newer", [1, 3, 5])
def test_of_two_attempts_alive_at_once_the_older_gives_up_and_the_newer_counts(
    platform: Platform, count: str, older: int, newer: int
) -> None:
    session, epochs = f"two-{older}-{newer}", {}
    with attempt(platform, count, session, 0, 1) as only:
        epochs[0] = rows(only.run(batches(0)))
    with attempt(platform, count, session, 1, 2) as old, attempt(platform, count, session, 1, 3) as new:
        first, second = old.run(batches(1)), new.run(batches(1))
        for _ in range(older):
            next(first)
        got = [next(second) for _ in range(newer)]
        with pytest.raises(Stale, match="newer attempt at this epoch"):
            list(first)
        epochs[1] = rows([*got, *second])
    with attempt(platform, count, session, 2, 4) as only:
        epochs[2] = rows(only.run(batches(2)))
    check(epochs, 3)
