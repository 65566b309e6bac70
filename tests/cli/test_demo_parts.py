"""The parts of the demo without Spark: generator, chunks, pace, and above all the count, which must find every fault."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from udo_cli.demo import generator, plan, source
from udo_cli.demo.verify import Verification, verify
from udo_protocol.errors import NotFound, SchemaError, UsageError


@pytest.fixture(scope="module")
def payments() -> pa.Table:
    return generator.transactions(60_000)


def test_the_generator_repeats_itself_for_a_seed(payments: pa.Table) -> None:
    assert payments.equals(generator.transactions(60_000))
    assert not payments.equals(generator.transactions(60_000, seed=8))


@pytest.mark.parametrize("rows", [1_000, 5_000, 60_000])
@pytest.mark.parametrize("seed", [1, 7, 99])
def test_the_generator_gives_as_many_rows_as_asked_for_in_order_of_time(rows: int, seed: int) -> None:
    table = generator.transactions(rows, seed)
    assert table.schema == source.SCHEMA
    assert table.column("tx_id").to_numpy().tolist() == list(range(rows))
    assert (np.diff(table.column("timestamp").to_numpy()) >= np.timedelta64(0)).all()


def test_frauds_are_planted_as_rarely_as_in_the_handbook(payments: pa.Table) -> None:
    share = pc.mean(payments.column("is_fraud").cast("double")).as_py()
    assert 0.005 < share < 0.05
    high = payments.filter(pc.greater(payments.column("amount"), 220.0))
    assert pc.mean(high.column("is_fraud").cast("double")).as_py() > 0.9
    assert payments.filter(payments.column("is_fraud")).num_rows > high.num_rows * 2  # the other scenarios


def test_columns_of_a_file_are_found_by_other_names_and_sorted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "TX_DATETIME": pa.array([3, 1, 2], pa.timestamp("ms")),
            "CUSTOMER_ID": pa.array([1, 2, 3], pa.int16()),
            "merchant": ["a", "b", "a"],
            "TX_AMOUNT": [1.0, 2.0, 3.0],
            "TX_FRAUD": pa.array([0, 1, 0], pa.int8()),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    found = source.read(tmp_path / "t.parquet", None)
    assert found.schema == source.SCHEMA
    assert found.column("card_id").to_pylist() == [2, 3, 1]
    assert found.column("terminal_id").to_pylist() == [1, 0, 0]
    assert found.column("is_fraud").to_pylist() == [True, False, False]
    assert found.column("tx_id").to_pylist() == [0, 1, 2]


def test_csv_is_read_too_and_rows_are_bounded(tmp_path: Path, payments: pa.Table) -> None:
    pyarrow.csv.write_csv(payments.slice(0, 50), tmp_path / "t.csv")
    assert source.read(tmp_path / "t.csv", 20).equals(payments.slice(0, 20))


def test_a_file_that_cannot_serve_is_told_by_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"timestamp": pa.array([1], pa.timestamp("s")), "card_id": [1]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match="no column for 'terminal_id'"):
        source.read(tmp_path / "t.parquet", None)
    with pytest.raises(NotFound):
        source.read(tmp_path / "none.parquet", None)
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(UsageError, match="expected a .parquet or .csv"):
        source.read(tmp_path / "t.txt", None)
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(UsageError, match="cannot be read"):
        source.read(tmp_path / "bad.parquet", None)


def test_chunks_hold_every_row_in_order_in_at_least_twenty_micro_batches(tmp_path: Path, payments: pa.Table) -> None:
    chunks = source.split(payments, tmp_path / "c", 1_000_000)
    assert chunks.batches >= source.LEAST_BATCHES
    assert pa.concat_tables(pq.read_table(f) for f in chunks.files).equals(payments)


def test_the_feeder_keeps_its_pace_and_hands_over_whole_micro_batches(tmp_path: Path, payments: pa.Table) -> None:
    chunks = source.split(payments, tmp_path / "c", 1_000)
    feeder = source.Feeder(chunks, tmp_path / "landing", rate=1_000.0)
    feeder.feed(0.0)
    assert feeder.rows == 1_000
    feeder.feed(10.5)
    assert feeder.rows == 11_000
    assert len(list((tmp_path / "landing").iterdir())) == 22
    feeder.feed(1e9)
    assert feeder.done
    landed = sorted((tmp_path / "landing").iterdir())
    times = [p.stat().st_mtime for p in landed]
    assert len(set(times)) == len(times) and times == sorted(times)


def test_a_plan_is_checked_before_anything_starts() -> None:
    assert plan.make(None, 1_000, 2, None, None, 7).table.num_rows == 2_000
    assert plan.make(None, None, 10, 4_000, None, 7).rate == 400
    assert plan.make(None, None, None, 2_000, None, 7).update_at == 1_000
    with pytest.raises(UsageError, match="not inside the stream"):
        plan.make(None, None, None, 2_000, 2_000, 7)


def sink(folder: Path, parts: list[list[tuple[int, str]]], uncommitted: list[tuple[int, str]] | None = None) -> Path:
    """Write a file sink as Spark leaves it; each part is a partition of (row, version)."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True)

    def write(name: str, rows: list[tuple[int, str]]) -> Path:
        path = folder / name
        pq.write_table(
            pa.table({"tx_id": [r for r, _ in rows], "flagged": [r % 2 == 0 for r, _ in rows], "rules": [v for _, v in rows]}), path
        )
        return path

    for k, part in enumerate(parts):
        entry = {"path": write(f"part-{k}.parquet", part).as_uri(), "action": "add"}
        (log / str(k)).write_text("v1\n" + json.dumps(entry))
    if uncommitted:
        write("part-left.parquet", uncommitted)
    return folder


def count(folder: Path, parts: list[list[tuple[int, str]]], rows: int = 6) -> Verification:
    return verify(sink(folder, parts), np.arange(rows) < 3)


def test_an_exact_stream_is_exact(tmp_path: Path) -> None:
    verdict = count(tmp_path / "s", [[(0, "1"), (1, "1")], [(2, "1"), (3, "2")], [(4, "2"), (5, "2")]])
    assert verdict.exact
    assert verdict.first_row == {"1": 0, "2": 3}
    assert (verdict.quality["1"].precision, verdict.quality["1"].recall) == (1.0, 2 / 3)
    assert (verdict.quality["2"].caught, verdict.quality["2"].flagged, verdict.quality["2"].recall) == (0, 1, None)


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([[(0, "1"), (1, "1"), (2, "1"), (3, "1"), (4, "1")]], "lost"),
        ([[(0, "1"), (1, "1"), (2, "1")], [(2, "1"), (3, "1"), (4, "1"), (5, "1")]], "duplicated"),
        ([[(0, "1"), (2, "1"), (1, "1"), (3, "1"), (4, "1"), (5, "1")]], "reordered"),
        ([[(0, "1"), (1, "1"), (2, "1"), (3, "1"), (4, "1"), (5, "1"), (6, "1")]], "unknown"),
        ([[(0, "1"), (1, "2"), (2, "1"), (3, "2"), (4, "2"), (5, "2")]], "mixed_rows"),
    ],
)
def test_the_count_catches_every_fault(tmp_path: Path, parts: list[list[tuple[int, str]]], fault: str) -> None:
    verdict = count(tmp_path / "s", parts)
    assert getattr(verdict, fault) == 1
    assert not verdict.exact


def test_files_that_spark_has_not_committed_do_not_count(tmp_path: Path) -> None:
    rows = [(r, "1") for r in range(6)]
    assert verify(sink(tmp_path / "s", [rows], uncommitted=rows), np.zeros(6, dtype=bool)).exact


def test_a_compacted_log_counts_once(tmp_path: Path) -> None:
    folder = sink(tmp_path / "s", [[(0, "1"), (1, "1"), (2, "1")], [(3, "1")], [(4, "1"), (5, "1")]])
    log = folder / "_spark_metadata"
    lines = [(log / str(k)).read_text().splitlines()[1] for k in range(2)]
    (log / "1").unlink()
    (log / "1.compact").write_text("\n".join(["v1", *lines]))
    assert verify(folder, np.zeros(6, dtype=bool)).exact
