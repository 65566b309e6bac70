"""Every test that docs/guarantees.md cites exists, under the name it is cited by."""

from __future__ import annotations

import re

import pytest

from tests.support.cited import TESTS, require_cited

TEXT = (TESTS.parent / "docs" / "guarantees.md").read_text("utf-8")
CITED = sorted(set(re.findall(r"`([a-z0-9_/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "name"), CITED)
def test_a_cited_test_exists(file: str, name: str) -> None:
    require_cited(file, name)


def test_each_row_of_the_tables_names_what_shows_it() -> None:
    rows = [
        line.split("|")
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.endswith(("| shown by |", "| test that fails |"))
    ]
    assert len(rows) > 20
    assert [r[1].strip() for r in rows if not re.search(r"::test_|chaos|model", r[-2])] == []
