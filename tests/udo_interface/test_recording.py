"""A streaming query that is recorded midway: a local operator answers the recording as the served one did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from tests.cli.conftest import Shell
from tests.support.keyed_stream import COUNT, MANIFEST, Stream
from tests.support.recording import Recorder, folder, replayed
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform


@pytest.mark.long
def test_a_recorded_query_with_failing_tasks_replays_to_what_it_was_served(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    name = platform.operator(COUNT, **MANIFEST)
    stream = Stream(spark, tmp_path / "query", name)
    for _ in range(3):
        stream.add()
    stream.run()

    def fail_first(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the first attempt fails at its end")

    recording = Recorder(connect_node(platform.node), name, tmp_path / "r")
    for _ in range(3):
        stream.add()
    stream.run(lambda df: df.mapInArrow(fail_first, df.schema))
    stream.check()
    [slot] = platform.slots(name)
    made = recording.stop(slot.emitted)
    assert made.gaps == []

    udo, operator = Shell(tmp_path / "home"), folder(tmp_path / "local", COUNT, **MANIFEST)
    outcome, rows = replayed(udo, operator, tmp_path / "r")
    assert outcome["errors"] == 0
    epochs = {row["__udo_epoch"] for row in rows}
    assert epochs == {3, 4, 5}
    for epoch in epochs:  # failed attempts gave the same answers as the next ones
        mine = {(r["id"], r["k"], r["n"]) for r in rows if r["__udo_epoch"] == epoch}
        assert sorted(mine) == sorted(stream.rows[epoch])
    assert len(rows) > sum(len(stream.rows[e]) for e in epochs), "no attempt was repeated"
    changed = folder(tmp_path / "changed", COUNT.replace("+ 1", "+ 1000"), **MANIFEST)
    _, other = replayed(udo, changed, tmp_path / "r", "--epoch", "3")
    before = {k: n for e in range(3) for _, k, n in sorted(stream.rows[e])}
    seen: dict[str, int] = {}
    for r in sorted({(r["id"], r["k"], r["n"]) for r in other}):
        seen[r[1]] = seen.get(r[1], 0) + 1000
        assert r[2] == before.get(r[1], 0) + seen[r[1]]
