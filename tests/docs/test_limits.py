"""Every limitation that the guides state is shown by a test, or has a reason why no test can show it (limits.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.docs.limits import LIMITS
from tests.support.cited import TESTS, require_cited

ROOT = TESTS.parent
# Documents that have checks of their own, or are normative.
NO_GUIDES = {
    "architecture.md",
    "contributing.md",
    "guarantees.md",
    "operator-protocol.md",
    "papers.md",
    "performance.md",
    "protocol.md",
}
SAYS_NO = re.compile(r"\b(cannot|not\s+yet|so\s+far|not\s+supported|only)\b", re.IGNORECASE)


class Statement(NamedTuple):
    """A line of a guide in which a word of denial or restriction begins (SAYS_NO)."""

    guide: str
    number: int
    line: str


def statements() -> Iterator[Statement]:
    """The statements of all guides, outside their code."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name in NO_GUIDES:
            continue
        code, lines = False, path.read_text("utf-8").splitlines()
        for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
            code ^= (fence := line.lstrip().startswith("```"))
            if fence or code:
                continue
            if any(match.start() < len(line) for match in SAYS_NO.finditer(f"{line}\n{following}")):
                yield Statement(path.name, number, line)


STATEMENTS = list(statements())
ENTRIES = [(guide, snippet) for guide, snippets in LIMITS.items() for snippet in snippets]
CITED = sorted({test for snippets in LIMITS.values() for shown in snippets.values() if not isinstance(shown, str) for test in shown})


def test_each_statement_of_what_cannot_be_done_has_an_entry() -> None:
    missing = [s for s in STATEMENTS if not any(snippet in s.line for snippet in LIMITS.get(s.guide, {}))]
    told = "\n".join(f"{s.guide}:{s.number}: {s.line.strip()}" for s in missing)
    assert not missing, (
        f"{told}\nIs it true? Then add to tests/docs/limits.py a few words of that line, and the test that shows it, or why none of ours "
        "can. Else correct the guide."
    )


@pytest.mark.parametrize(("guide", "snippet"), ENTRIES)
def test_an_entry_is_of_a_statement_that_is_still_there(guide: str, snippet: str) -> None:
    assert len(snippet.split()) >= 3, f"{snippet!r}: more words, so that it is found in no other line"
    assert any(s.guide == guide and snippet in s.line for s in STATEMENTS), (
        f"{guide} says {snippet!r} no more, in no line that says cannot, not yet, so far, not supported or only: change or remove "
        "the entry in tests/docs/limits.py"
    )


@pytest.mark.parametrize("cited", CITED)
def test_a_test_that_shows_a_limit_exists(cited: str) -> None:
    file, _, name = cited.partition("::")
    assert name, f"{cited}: name the test, {file}::test_..."
    require_cited(file, name)


def test_each_entry_has_a_test_or_a_reason_of_a_few_words() -> None:
    empty = [f"{guide}: {snippet}" for guide, snippet in ENTRIES if not (shown := LIMITS[guide][snippet]) or len(shown) > 80]
    assert empty == []
