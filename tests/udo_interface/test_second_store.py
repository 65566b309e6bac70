"""A stateful query with a store goes on after the node has lost everything, or elsewhere, as if nothing had happened."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.support.timed_stream import BEGIN, MANIFEST, TIMED, Timed, on, uninterrupted
from tests.udo_interface.conftest import Platform
from udo_interface import udo
from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=[1, 3], ids=["one slot", "three slots"])
def timed(lossy: Platform, request: pytest.FixtureRequest) -> str:
    name = f"timed-{request.param}"
    lossy.push(TIMED, name=name, **MANIFEST)
    lossy.deploy(name, slots=request.param)
    return name


@pytest.fixture
def stream(spark: SparkSession, timed: str, lossy: Platform, tmp_path: Path) -> Iterator[Timed]:
    """A query with its store beside the checkpoint."""
    with on(spark, lossy):
        yield Timed(spark, tmp_path / "stream", timed, store=str(tmp_path / "stream" / "ckpt" / "udo"))


def test_after_both_servers_and_their_data_are_gone_the_query_goes_on_with_equal_answers(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path
) -> None:
    """Also twice, in the middle of a chain of deltas, after a full file, and when old files have been removed."""
    for files in (3, 2, 8):
        for _ in range(files):
            stream.add()
        stream.run()
        lossy.lose_node()
    stream.add()
    stream.run()
    assert sorted(int(d.name) for d in stream.session().iterdir()) == [10, 11, 12, 13]
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


def test_the_query_goes_on_in_a_fresh_platform_elsewhere_with_another_number_of_partitions(
    spark: SparkSession, timed: str, tmp_path: Path
) -> None:
    stream = Timed(spark, tmp_path / "stream", timed, store=str(tmp_path / "stream" / "ckpt" / "udo"))
    for partitions in (2, 5, 3):
        with tempfile.TemporaryDirectory(prefix="udo-") as home:
            elsewhere = Platform(Path(home))
            try:
                elsewhere.push(TIMED, name=timed, **MANIFEST)
                elsewhere.deploy(timed)
                with on(spark, elsewhere, partitions):
                    for _ in range(3):
                        stream.add()
                    stream.run()
                    if partitions == 3:
                        assert stream.answers() == uninterrupted(stream, spark, tmp_path)
            finally:
                elsewhere.stop()
    partitions_of = {int(d.name): {f.name.split("-")[0].split("of")[1] for f in d.iterdir()} for d in stream.session().iterdir()}
    assert partitions_of == {e: {str((2, 5, 3)[e // 3])} for e in range(9)}


@pytest.mark.parametrize("lost", [False, True])
def test_a_crash_between_end_and_the_stores_write_counts_once(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path, lost: bool
) -> None:
    for _ in range(2):
        stream.add()
    stream.run()
    stream.add()
    (stream.session() / "2").touch()  # in place of a directory: the node has ENDed the epoch, but its file cannot be written
    with pytest.raises(PySparkException, match="cannot be written.*Epoch 2 is not complete without it"):
        stream.run()
    (stream.session() / "2").unlink()
    assert set(stream.rows) == {0, 1}
    if lost:
        lossy.lose_node()
    stream.add()
    stream.run()
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("lost", [False, True])
def test_a_crash_between_the_stores_write_and_sparks_commit_counts_once(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path, lost: bool, partitions: int
) -> None:
    for _ in range(3):
        stream.add()
    stream.run()
    stream.lose_commit()
    if lost:
        lossy.lose_node()
    with on(spark, lossy, partitions):
        stream.add()
        stream.run()
        lossy.lose_node()  # the files written by the replayed epoch are good, too
        stream.add()
        stream.run()
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


def test_a_missing_file_is_an_error_that_names_it_not_an_empty_start(stream: Timed, lossy: Platform) -> None:
    for _ in range(3):
        stream.add()
    stream.run()
    lossy.lose_node()
    shutil.rmtree(stream.session() / "1")
    stream.add()
    with pytest.raises(PySparkException, match="/1: no file holds key group .* after epoch 1, and the query continues with epoch 3"):
        stream.run()


def test_a_limit_and_an_epoch_evaluated_twice_leave_a_store_that_can_be_restored(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path
) -> None:
    def looked_at(df: DataFrame, epoch: int) -> None:
        assert not df.isEmpty()
        stream.rows[epoch] = [tuple(r) for r in df.collect()]  # type: ignore[misc]

    for _ in range(3):
        stream.add()
    stream.run(each=looked_at)
    lossy.lose_node()
    stream.add()
    stream.run(each=looked_at)
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


def test_a_store_given_to_a_query_that_has_run_without_one_begins_with_all_its_state(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path
) -> None:
    store = stream._options.pop("store")
    for _ in range(3):
        stream.add()
    stream.run()
    stream._options["store"] = store
    stream.add()
    stream.run()
    lossy.lose_node()
    stream.add()
    stream.run()
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


def test_an_operator_called_inside_foreach_batch_has_a_store_too(
    stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path
) -> None:
    def each(df: DataFrame, epoch: int) -> None:
        scored = udo(stream._operator)(df, key="k", store=stream._options["store"])
        stream.rows[epoch] = [tuple(r) for r in scored.collect()]  # type: ignore[misc]

    for _ in range(2):
        stream.add()
        query = stream.source().writeStream.foreachBatch(each).option("checkpointLocation", str(stream.checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        lossy.lose_node()
    for _ in range(3):
        stream.add()
    stream.run()  # within the plan: the same session
    assert stream.answers() == uninterrupted(stream, spark, tmp_path)


@pytest.mark.short
def test_a_store_is_refused_where_there_is_no_state_to_keep(stream: Timed, lossy: Platform, spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, "a", BEGIN)], "id long, k string, t timestamp")
    keyed, place = udo(stream._operator, key="k"), str(tmp_path / "store")
    with pytest.raises(UsageError, match="keeps the state of a streaming query, and a batch job's ends with it"):
        keyed(df, store=place)
    with pytest.raises(UsageError, match="an RDD's ends with its job"):
        _ = udo(stream._operator, key="k", store=place).map_partitions
    with pytest.raises(UsageError, match="keeps no state; call it without store="):
        udo(lossy.operator())(df, store=place)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be used"):
        keyed(stream.source(), store=str(tmp_path / "file" / "store"))
