"""docs/papers.md has a place for the figures of each suite that it quotes, and a drawing shows each policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import figures, papers


@pytest.mark.parametrize("name", papers.SUITES)
def test_the_document_has_a_place_for_the_figures(name: str) -> None:
    figures.replace_between(papers.DOCUMENT.read_text("utf-8"), name, "figures")


@pytest.mark.long
def test_a_drawing_names_each_policy(tmp_path: Path) -> None:
    papers.draw({"KG": [[1, 100, 20], [2, 120, 30]], "DLB-H": [[1, 110, 20], [2, 150, 10]]}, tmp_path / "new" / "balance.svg")
    text = (tmp_path / "new" / "balance.svg").read_text("utf-8")
    assert all(name in text for name in ("KG", "DLB-H", "events/s", "imbalance, %"))
