"""The report of a diff: its JSON, and the reports of several slots as one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from node_manager.trials.together import added
from udo_protocol.diff_report import DiffReport, FirstError, FrameTimes
from udo_protocol.node import diff_reports

ONE = DiffReport(
    frames=3,
    different=1,
    columns={"a": 2},
    served_by={"1": 3},
    row_counts_different=1,
    p99_ms=4.0,
    version="2",
    serving_version="1",
    serving=FrameTimes(1.0, 2.0),
    first_error=FirstError("boom", "Traceback", '{"x": 1}'),
    lasted_s=1.5,
)


def test_a_report_comes_back_from_its_json() -> None:
    assert diff_reports.parse(json.dumps(ONE.document())) == ONE
    assert ONE.document()["outcome"] == "different"


def test_a_newer_nodes_fields_are_passed_over_and_an_older_nodes_missing_ones_have_defaults() -> None:
    assert diff_reports.parse('{"frames": 1, "later": [1]}') == DiffReport(frames=1)


@pytest.mark.parametrize("text", ['{"frames": "1"}', '{"columns": {"a": "b"}}', '{"serving": 1}', "[]", "{"])
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="DiffReport"):
        diff_reports.parse(text)


@pytest.mark.parametrize(
    ("report", "outcome"),
    [(DiffReport(), "nothing"), (DiffReport(frames=1), "equal"), (ONE, "different"), (DiffReport(frames=1, died="killed"), "different")],
)
def test_the_outcome_follows_from_what_was_found(report: DiffReport, outcome: str) -> None:
    assert report.outcome == outcome


def test_of_several_slots_counts_are_summed_by_column_and_version_too_and_the_longest_times_are_told() -> None:
    other = replace(
        ONE, columns={"a": 1, "b": 5}, served_by={"3": 2}, p99_ms=9.0, serving=FrameTimes(3.0, 1.0), first_error=None, lasted_s=2.0
    )
    found = added([other, ONE])
    assert (found.frames, found.different, found.row_counts_different) == (6, 2, 2)
    assert (found.columns, found.served_by) == ({"a": 3, "b": 5}, {"1": 3, "3": 2})
    assert (found.p99_ms, found.serving, found.lasted_s) == (9.0, FrameTimes(3.0, 2.0), 2.0)
    assert (found.version, found.first_error) == ("2", ONE.first_error)
    assert added([ONE]) == ONE
