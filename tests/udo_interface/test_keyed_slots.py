"""Keyed operators in several slots under Spark: counts as if there were one slot and every epoch ran once."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row

from tests.support.keyed_stream import COUNT, MANIFEST, Stream, key_of
from udo_interface import udo
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_protocol.errors import ServerLost
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

_names = itertools.count()


@pytest.fixture
def wide(platform: Platform) -> str:
    """The counting operator, in three slots."""
    name = f"wide{next(_names)}"
    platform.push(COUNT, name=name, **MANIFEST)
    platform.deploy(name, slots=3)
    assert len(platform.slots(name)) == 3
    return name


@pytest.mark.both_paths
@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_a_query_counts_once_while_owners_die_the_version_changes_and_it_is_restarted(
    spark: SparkSession, platform: Platform, wide: str, tmp_path: Path, seed: int
) -> None:
    orders, stream = random.Random(seed), Stream(spark, tmp_path, wide)
    platform.push(COUNT, name=wide, version="2", **MANIFEST)

    def each(df: DataFrame, epoch: int) -> None:
        if epoch == 2:
            assert platform.update(wide, "2") == "done"
        os.kill(orders.choice(platform.slots(wide)).pid, signal.SIGKILL)
        stream.rows[epoch] = [tuple(r) for r in df.collect()]  # type: ignore[misc]

    def fail_first(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the first attempt fails once every slot has its END")

    for _ in range(3):
        stream.add(200)
    stream.run(each=each)
    for name in ("2", ".2.crc"):  # the last epoch is replayed
        (stream.directory / "ckpt" / "commits" / name).unlink(missing_ok=True)
    stream.add(200)
    stream.run(lambda df: df.mapInArrow(fail_first, df.schema))
    stream.check()
    assert [s.version for s in platform.slots(wide)] == ["2"] * 3
    assert all(s.events_in for s in _stats(platform, wide)), "every slot has a share"


def _stats(platform: Platform, name: str) -> list[Any]:
    from udo_protocol.node.api import connect_node

    return list(connect_node(platform.node).stats(name).slots)


def test_a_lost_connection_is_told_with_the_slot_that_it_led_to(platform: Platform, wide: str) -> None:
    request = Request(wide, "lost", epoch=0, keyed=KeyedCall("", "call", tuple(range(KEY_GROUPS))))
    sent = pa.schema({"id": pa.int64(), "k": pa.string(), GROUP_COLUMN: pa.int32()})
    answers = pa.schema({"id": pa.int64(), "k": pa.string(), "n": pa.int64()})
    with (
        closing(platform.queue()) as queue,
        pytest.raises(ServerLost) as caught,
        conversations(platform.node, request, sent, answers) as (lanes, opened),
    ):
        sender, _ = lanes[1]
        assert sender.place.slot != opened.place.slot
        queue.call("CLIENT", "KILL", "ID", sender._end.conn.call("CLIENT", "ID"))
        sender.push_end()
        sender.settle()
    assert str(caught.value).startswith(f"{sender.place}: the server on ")


@pytest.mark.both_paths
def test_kept_columns_stay_with_their_rows_in_batches_and_rdds(spark: SparkSession, wide: str) -> None:
    df = spark.createDataFrame([(i, key_of(i), i * 7) for i in range(3000)], "id long, k string, extra long")
    rows = udo(wide)(df, key="k", keep="extra").collect()
    assert {(r.id, r.k, r.extra) for r in rows} == {(i, key_of(i), i * 7) for i in range(3000)}
    last = {r.k: r.n for r in sorted(rows, key=lambda r: r.n)}
    assert len(rows) == 3000 and last == Counter(key_of(i) for i in range(3000))

    pairs = spark.sparkContext.parallelize([(key_of(i), i) for i in range(300)], 2).partitionBy(3)
    records = pairs.map(lambda p: Row(id=p[1], k=p[0], extra=p[1] * 7))
    found = records.mapPartitions(udo(wide, key="k", keep="extra").map_partitions).collect()
    assert sorted((r.id, r.extra) for r in found) == [(i, i * 7) for i in range(300)]
    assert Counter(r.k for r in found) == {r.k: max(s.n for s in found if s.k == r.k) for r in found}
