"""docs/papers.md has a place for the figures of each suite that it quotes, and a drawing shows each policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import figures, papers
from benchmarks.harness.quantiles import Quantiles
from benchmarks.suites import migration


@pytest.mark.parametrize("name", papers.SUITES)
def test_the_document_has_a_place_for_the_figures(name: str) -> None:
    figures.replace_between(papers.DOCUMENT.read_text("utf-8"), name, "figures")


def test_the_longest_gap_during_an_update_is_the_longest_and_not_that_at_the_switch() -> None:
    of = {"p50": 1.0, "p99": 2.0}
    made = {"request_to_answer_ms": of, "gap_ms": of, "pause_ms": {"p50": 7.0, "p99": 9.0}, "lost": 0, "duplicated": 0, "reordered": 0}
    [section] = papers.update(made)
    assert dict((row[0], row[2]) for row in section.rows)["longest gap between answers meanwhile, ms"] == "9.0 (99th percentile)"


def test_the_pause_of_an_update_among_migrations_is_not_called_its_gap() -> None:
    ms = Quantiles(1.0, 2.0, 3.0)
    moved = migration.Strategy(ms, ms, {}, {})
    made = migration.Figures(moved, moved, {}, migration.Updates(ms, 2), 1.0, 2, 10, 0, 0, 0, 10_000, "process")
    remark = migration.sections(made)[1].remark
    assert "pause 1.0 ms (p50), 2.0 ms (p99)" in remark and "gap" not in remark


@pytest.mark.long
def test_a_drawing_names_each_policy(tmp_path: Path) -> None:
    papers.draw({"KG": [[1, 100, 20], [2, 120, 30]], "DLB-H": [[1, 110, 20], [2, 150, 10]]}, tmp_path / "new" / "balance.svg")
    text = (tmp_path / "new" / "balance.svg").read_text("utf-8")
    assert all(name in text for name in ("KG", "DLB-H", "events/s", "imbalance, %"))
