"""A canary and Spark: a share of the tasks is served by the new version, and every row is answered once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.conftest import wait_until
from tests.support.keyed_stream import COUNT, MANIFEST, Stream
from udo_interface import udo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long

STAMP = """
from udo_runtime import operator
@operator
def run(batch):
    return {{"id": batch.column("id"), "version": [{version}] * batch.num_rows}}
"""


@pytest.mark.both_paths
@pytest.mark.short
def test_each_fifth_task_is_the_canarys_and_no_row_is_lost_or_doubled(spark: SparkSession, platform: Platform) -> None:
    output = {"id": "int64", "version": "int64"}
    name = platform.operator(STAMP.format(version=1), output=output)
    platform.push(STAMP.format(version=2), name=name, version="2", output=output)
    events = platform.api.update(name, "2", canary={"percent": 20, "for_s": 3600, "rollback_if": ["errors>0"]})
    assert any(e["phase"] == "sharing" for e in events)

    rows = udo(name)(spark.range(0, 1000, 1, 10)).withColumn("task", F.spark_partition_id()).collect()
    pinned = udo(f"{name}@1")(spark.range(0, 10, 1, 10)).collect()

    assert sorted(r.id for r in rows) == list(range(1000))
    assert Counter(v for _, v in {(r.task, r.version) for r in rows}) == {1: 8, 2: 2}
    assert {r.version for r in pinned} == {1}
    assert list(platform.api.rollback(name))[-1]["phase"] == "rolled_back"

    def versions() -> set[int]:
        return {r.version for r in udo(name)(spark.range(0, 100, 1, 10)).collect()}

    wait_until(lambda: versions() == {1}, 10, "the node to hear of the rollback")
    assert versions() == {1}


# MIGRATED counts as COUNT does, with another form of state; FAILING fails on every event.
MIGRATED = (
    COUNT.replace('"n"] =', '"m"] =').replace('get("n"', 'get("m"') + "    def migrate(self, old, from_version): return {'m': old['n']}\n"
)
FAILING = COUNT.replace("        n =", "        if event['id'] >= 0: raise ValueError('not today')\n        n =")


def test_a_keyed_query_counts_on_while_a_canary_is_tried_rolled_back_and_promoted(
    spark: SparkSession, platform: Platform, tmp_path: Path
) -> None:
    name = platform.operator(COUNT, **MANIFEST)
    platform.push(FAILING, name=name, version="2", **MANIFEST)
    platform.push(MIGRATED, name=name, version="3", **MANIFEST, state_version=1, migrates_from=[0])
    stream = Stream(spark, tmp_path, name)
    stream.add()
    stream.run()
    query = stream.start()
    try:
        bad = platform.api.update(name, "2", canary={"percent": 50, "for_s": 3600, "rollback_if": ["errors>0"]})
        told = during(stream, bad, lambda e: e["phase"] == "sharing")
        assert told[-1]["phase"] == "rolled_back" and "not today" in told[-1]["detail"], told[-1]
        stream.add()
        query.processAllAvailable()

        wish = {"percent": 50, "for_s": 4, "rollback_if": ["errors>0", "different>0"], "min_events": 20}
        files = stream.files
        told = during(stream, platform.api.update(name, "3", canary=wish), lambda e: e["phase"] == "sharing")
        assert told[-1]["phase"] == "done", told[-1]
        [passed] = [e["detail"] for e in told if e["phase"] == "preparing"]
        counted = re.search(r"passed: (\d+) events, 0 errors, .*, 0 of (\d+) frames compared different", passed)
        assert counted is not None and int(counted[2]) > 0, passed
        # Three of the nine keys, k0, k4 and k15, lie in the canary's groups: 5 of 17 events.
        assert 20 <= int(counted[1]) <= 40 * (stream.files - files) / 2
        stream.add()
        query.processAllAvailable()
    finally:
        query.stop()
    stream.check()
    assert platform.api.deployment(name)["version"] == "3"


def during(stream: Stream, events: Iterator[dict[str, str]], begun: Callable[[dict[str, str]], bool]) -> list[dict[str, str]]:
    """Return all events of an update, while micro-batches run from when `begun` holds until its end."""
    told: list[dict[str, str]] = []
    follower = threading.Thread(target=lambda: told.extend(events), daemon=True)
    told.append(next(e for e in events if begun(e) or e["phase"] == "failed"))
    follower.start()
    while follower.is_alive():
        files = stream.files
        stream.add()
        wait_until(lambda n=files: n in stream.rows or not follower.is_alive(), 60, "a micro-batch")  # type: ignore[misc]
        follower.join(0.2)
    return told
