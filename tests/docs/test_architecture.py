"""docs/architecture.md is a map a few pages long, each mechanism has a page below docs/design, and all files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "architecture.md"
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
MOST_LINES = 150
# The folders with the files that the pages name by the end of their path.
FOLDERS = ("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "runtimes", "udo_cli", "tests", "benchmarks", "docs")
# A file in backticks, with or without its folders, or a folder.
_NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|lua|scala|md|toml)|(?:[\w-]+/)+[\w-]*)`", re.ASCII)


def _existing() -> set[str]:
    """Every file and folder of the product, under each suffix of its path."""
    paths = {p.relative_to(ROOT) for folder in FOLDERS for p in [ROOT / folder, *(ROOT / folder).rglob("*")]}
    return {"/".join(p.parts[at:]) for p in paths for at in range(len(p.parts))}


def test_the_map_is_short_and_names_every_page() -> None:
    text = MAP.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES, "a map: what a mechanism needs is told in its page below docs/design"
    assert set(re.findall(r"\]\(design/(\w+\.md)\)", text)) == {p.name for p in PAGES}


@pytest.mark.parametrize("page", [MAP, *PAGES], ids=lambda p: p.stem)
def test_files_and_folders_that_a_page_names_exist(page: Path) -> None:
    existing = _existing()
    assert [name for name in _NAMED.findall(page.read_text("utf-8")) if name.rstrip("/") not in existing] == []


def test_a_name_that_does_not_exist_would_be_found() -> None:
    assert _NAMED.findall("`state/savepoint.py`, `udo_protocol/queue`, `log.lua` accept, `run_id`") == [
        "state/savepoint.py",
        "udo_protocol/queue",
        "log.lua",
    ]
    assert "udo_runtime/state/savepoint.py" not in _existing()
