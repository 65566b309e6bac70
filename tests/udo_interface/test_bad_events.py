"""Bad events under Spark: answers and state are as without them, and each is a dead letter once, whatever Spark does to its tasks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from tests.support.keyed_stream import MANIFEST, Stream, key_of
from udo_interface import udo
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.udo_interface.conftest import Platform

# Counts, then fails, so that the count must be undone. Bad events that end in 7 get an answer of the wrong type instead.
PICKY = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["id"] % 10 == 3: raise ValueError(f"event {event['id']} is bad")
        yield {"id": event["id"], "k": event["k"], "n": "many" if event["id"] % 10 == 7 else n}
"""


def is_bad(i: int) -> bool:
    return i % 10 in (3, 7)


@pytest.fixture
def picky(platform: Platform) -> str:
    """A keyed deployment with the policy dead-letter, under a name of its own."""
    name = f"picky{len(platform.api.deployments())}"
    platform.push(PICKY, name=name, **MANIFEST)
    platform.deploy(name, policy="dead-letter")
    return name


def letters(platform: Platform, deployment: str) -> list[Any]:
    return sorted(connect_node(platform.node).dead_letters(deployment, whole=True), key=lambda d: json.loads(d.event)["id"])


def check(platform: Platform, deployment: str, stream: Stream) -> None:
    """Compare with one process that never sees the bad events; each of these must be a dead letter of its epoch, once."""
    counts: Counter[str] = Counter()
    bad: list[tuple[int, int]] = []
    for epoch in range(stream.files):
        expected = []
        for i in range(epoch * 1000, epoch * 1000 + 40):
            if is_bad(i):
                bad.append((epoch, i))
                continue
            counts[key_of(i)] += 1
            expected.append((i, key_of(i), counts[key_of(i)]))
        assert sorted((i, k) for i, k, _ in stream.rows[epoch]) == [(i, k) for i, k, _ in expected]
        # Within an epoch a key's events may come in any order.
        assert sorted((k, n) for _, k, n in stream.rows[epoch]) == sorted((k, n) for _, k, n in expected), f"epoch {epoch}"
    assert [(d.epoch, json.loads(d.event)["id"]) for d in letters(platform, deployment)] == bad


def fail_first(batches: Iterator[Any]) -> Iterator[Any]:
    """Fail the first attempt at each epoch behind the operator, after all its answers and so after its END."""
    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and context.partitionId() == 0:
        raise RuntimeError("the first attempt fails at its end")


@pytest.mark.long
def test_answers_and_state_are_those_without_the_bad_events_and_a_retried_task_leaves_each_dead_letter_once(
    spark: SparkSession, platform: Platform, picky: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, picky)
    for _ in range(3):
        stream.add()
    stream.run(lambda df: df.mapInArrow(fail_first, df.schema))
    check(platform, picky, stream)
    by_reason = Counter(d.code for d in letters(platform, picky))
    assert by_reason == {"operator": 12, "schema": 12}


@pytest.mark.long
def test_a_batch_replayed_after_its_commit_was_lost_leaves_each_dead_letter_once(
    spark: SparkSession, platform: Platform, picky: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, picky)
    for _ in range(2):
        stream.add()
    stream.run()
    for name in ("1", ".1.crc"):
        (stream.directory / "ckpt" / "commits" / name).unlink(missing_ok=True)
    stream.add()
    stream.run()
    check(platform, picky, stream)


@pytest.mark.long
def test_a_dataframe_evaluated_twice_leaves_each_dead_letter_once(
    spark: SparkSession, platform: Platform, picky: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, picky)

    def twice(df: Any, epoch: int) -> None:
        first, second = (sorted(tuple(r) for r in df.collect()) for _ in range(2))
        assert first == second
        stream.rows[epoch] = second  # type: ignore[assignment]

    for _ in range(2):
        stream.add()
    stream.run(each=twice)
    check(platform, picky, stream)


VECTORISED = """
from udo_runtime import operator
@operator
def run(batch):
    if 13 in batch.column("id").to_pylist(): raise ValueError("unlucky")
    return batch
"""


@pytest.fixture
def forward(platform: Platform) -> Callable[[str], str]:
    """Deploy a stateless operator that fails on 13, under a policy."""

    def deploy(policy: str, **limits: float) -> str:
        name = f"forward{len(platform.api.deployments())}"
        platform.push(VECTORISED, name=name)
        platform.deploy(name, policy=policy, limits=limits)
        return name

    return deploy


@pytest.mark.both_paths
def test_a_batch_job_answers_all_but_the_bad_events(spark: SparkSession, platform: Platform, forward: Callable[..., str]) -> None:
    name = forward("dead-letter")
    rows = udo(name)(spark.range(0, 1000, numPartitions=2)).collect()
    assert sorted(r["id"] for r in rows) == [i for i in range(1000) if i != 13]
    [letter] = letters(platform, name)
    assert (json.loads(letter.event), letter.partition) == ({"id": 13}, 0)


@pytest.mark.both_paths
def test_keep_names_the_policy_when_an_event_has_no_answer(spark: SparkSession, forward: Callable[..., str]) -> None:
    df = spark.range(0, 20, numPartitions=1).selectExpr("id", "id * 2 as twice")
    with pytest.raises(PySparkException) as caught:
        udo(forward("dead-letter"), keep="twice")(df).collect()
    assert "20 events got 19 answers. Under this deployment's policy 'dead-letter'" in str(caught.value)
    assert "drop keep=" in str(caught.value)
    kept = udo(forward("dead-letter"), keep="twice")(df.filter("id < 13")).collect()
    assert [(r["id"], r["twice"]) for r in kept] == [(i, 2 * i) for i in range(13)]
