"""The benchmarks' pure logic: percentiles, oracles, records, the copying of figures. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.harness import figures, record, tables
from benchmarks.harness.quantiles import Latencies, Quantiles, medians, percentile, quantiles, summary_ms
from benchmarks.harness.rules import InvalidRun, Sequence, check_sequence, require_equal


def test_percentiles_are_taken_over_the_whole_population_by_nearest_rank() -> None:
    ordered = np.arange(1, 1001, dtype=np.float64)
    assert [percentile(ordered, q) for q in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert percentile(np.array([7.0]), 0.5) == percentile(np.array([7.0]), 0.999) == 7.0


def test_a_summary_is_in_milliseconds_and_needs_no_order() -> None:
    assert summary_ms(np.array([0.003, 0.001, 0.002])) == Latencies(mean_ms=2.0, p50_ms=2.0, p99_ms=3.0, p999_ms=3.0, max_ms=3.0)


def test_quantiles_name_the_slowest() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == Quantiles(p50=2.0, p99=3.0, max=3.0)


def test_the_medians_of_rounds_are_taken_figure_by_figure() -> None:
    assert medians([Quantiles(1.0, 9.0, 3.0), Quantiles(2.04, 7.0, 5.0), Quantiles(3.0, 8.0, 4.0)], 1) == Quantiles(2.0, 8.0, 4.0)


def test_a_clean_sequence_is_clean() -> None:
    check_sequence(np.arange(5), 5).require_clean("five events")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([0, 1, 3, 4], Sequence(lost=1, duplicated=0, reordered=0)),
        ([0, 1, 1, 2, 3, 4, 4, 4], Sequence(lost=0, duplicated=3, reordered=0)),
        ([0, 2, 1, 3, 4], Sequence(lost=0, duplicated=0, reordered=1)),
        ([4, 0, 0], Sequence(lost=3, duplicated=1, reordered=1)),
        ([], Sequence(lost=5, duplicated=0, reordered=0)),
    ],
)
def test_lost_duplicated_and_reordered_events_are_counted(ids: list[int], expected: Sequence) -> None:
    found = check_sequence(np.array(ids, np.int64), 5)
    assert found == expected
    with pytest.raises(InvalidRun, match="lost"):
        found.require_clean("a run")


def test_an_event_that_was_never_sent_makes_the_run_invalid() -> None:
    with pytest.raises(InvalidRun, match="never sent"):
        check_sequence(np.array([0, 5]), 5)


def test_outputs_equal_to_the_oracle_pass_whatever_their_chunks() -> None:
    oracle = pa.table({"a": [1, 2, 3]})
    chunked = pa.table({"a": pa.chunked_array([[1], [2, 3]])})
    require_equal({"native": oracle, "udo": chunked}, oracle)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"a": [1, 3, 2]}), "udo differs in row 1, column 'a': got 3, expected 2"),
        (pa.table({"a": [1, 2]}), "udo answers with 2 rows, expected 3"),
        (pa.table({"b": [1, 2, 3]}), "udo answers with columns"),
        (pa.table({"a": pa.array([1, 2, 3], pa.int32())}), "udo answers with columns"),
    ],
)
def test_an_output_that_differs_is_named_with_its_row(table: pa.Table, why: str) -> None:
    with pytest.raises(InvalidRun, match=why):
        require_equal({"udo": table}, pa.table({"a": [1, 2, 3]}))


def test_the_latest_full_run_is_quoted_even_after_a_quick_one(tmp_path: Path) -> None:
    for n, quick in enumerate((False, False, True)):
        record.append({"name": "throughput", "arguments": {"quick": quick}, "n": n}, tmp_path)
    assert (record.latest("throughput", tmp_path) or {})["n"] == 1
    assert record.latest("latency", tmp_path) is None


def test_a_record_names_commit_machine_and_versions() -> None:
    made = record.stamp("codec", ["codec", "--quick"], {"quick": True}, Quantiles(1.0, 2.0, 3.0), record.commit())
    assert made["p99"] == 2.0
    assert made["machine"]["cores"] >= 1
    assert {"python", "pyarrow", "pyspark"} <= made["versions"].keys()
    assert made["commit"] == record.commit()
    meanwhile = record.stamp("codec", ["codec"], {"quick": False}, Quantiles(1.0, 2.0, 3.0), "0123456789")
    assert meanwhile["commit"] == "0123456789+", "what was checked out was another commit in the end"


def test_figures_are_copied_between_their_markers_only() -> None:
    text = "before\n<!-- figures:update -->\nold\n<!-- /figures:update -->\nafter"
    new = figures.replace_between(text, "update", "new")
    assert new == "before\n<!-- figures:update -->\nnew\n<!-- /figures:update -->\nafter"
    assert figures.replace_between(new, "update", "new") == new
    with pytest.raises(ValueError, match="figures:latency"):
        figures.replace_between(text, "latency", "new")


@pytest.mark.parametrize("name", ["demo", "throughput", "latency", "update"])
def test_the_document_has_a_place_for_the_figures(name: str) -> None:
    figures.replace_between(figures.DOCUMENT.read_text("utf-8"), name, "figures")


def test_a_section_becomes_a_markdown_table() -> None:
    section = tables.Section("Title", ("what", "ms"), [("a|b", "1.0")], "remark")
    assert tables.markdown([section]) == "**Title**\n\n| what | ms |\n|---|---|\n| a\\|b | 1.0 |\n\nremark"


def test_rates_are_readable() -> None:
    assert [tables.count(x) for x in (3_412_000, 51_240, 940)] == ["3.41 M", "51.2 K", "940"]
