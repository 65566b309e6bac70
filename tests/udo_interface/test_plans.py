"""A keyed call counts right in every plan that Spark makes of it: whatever stands before and behind it, and whoever evaluates it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.keyed_stream import COUNT, MANIFEST
from tests.support.plans import BEFORE, BEHIND, INSIDE, Plan, Planned
from tests.support.seeds import seeds
from tests.support.selection import long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

ONCE_WRONG = ("in a thread", "union with a table on its left")
EMPTY = ((40, 0, 40), (0, 40))  # the second and the fourth epoch have no event


@pytest.fixture(scope="module")
def count(platform: Platform) -> str:
    return platform.operator(COUNT, **MANIFEST)


def right(spark: SparkSession, count: str, tmp_path: Path, plan: Plan) -> None:
    planned = Planned(spark, tmp_path, count, plan)
    planned.run()
    planned.check()


# The gate has those that once came out wrong or stuck, and by its seeds some of the others.
@pytest.mark.parametrize("adaptive", [True, long(False)])
@pytest.mark.parametrize("behind", ["coalesce", *(long(name) for name in BEHIND if name != "coalesce")])
def test_behind_the_call_there_may_be_anything(spark: SparkSession, count: str, tmp_path: Path, behind: str, adaptive: bool) -> None:
    right(spark, count, tmp_path, Plan(behind=(behind,), adaptive=adaptive))


@pytest.mark.parametrize("adaptive", [long(True), False])
@pytest.mark.parametrize("before", ["columns", *(long(name) for name in BEFORE if name != "columns")])
def test_before_the_call_there_may_be_anything(spark: SparkSession, count: str, tmp_path: Path, before: str, adaptive: bool) -> None:
    right(spark, count, tmp_path, Plan(before=(before,), adaptive=adaptive))


@pytest.mark.parametrize("called", ["stream", "inside"])
@pytest.mark.parametrize("inside", [*ONCE_WRONG, *(long(name) for name in INSIDE if name not in ONCE_WRONG)])
def test_in_foreach_batch_it_is_evaluated_in_any_way(spark: SparkSession, count: str, tmp_path: Path, inside: str, called: str) -> None:
    right(spark, count, tmp_path, Plan(inside=inside, called=called))


@pytest.mark.parametrize("partitions", [(1, 8), long((8, 2)), long((200, 1))])
def test_the_partitions_may_be_any_number_and_another_one_after_a_restart(
    spark: SparkSession, count: str, tmp_path: Path, partitions: tuple[int, int]
) -> None:
    right(spark, count, tmp_path, Plan(partitions=partitions, behind=("coalesce",), epochs=EMPTY))


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_any_plan_counts_as_a_plain_process_does(spark: SparkSession, count: str, tmp_path: Path, seed: int) -> None:
    right(spark, count, tmp_path, Plan.drawn(seed))
