"""A canary and Spark: a share of the tasks is served by the new version, and every row is answered once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

STAMP = """
from udo_runtime import operator
@operator
def run(batch):
    return {{"id": batch.column("id"), "version": [{version}] * batch.num_rows}}
"""


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
    assert {r.version for r in udo(name)(spark.range(0, 100, 1, 10)).collect()} == {1}
