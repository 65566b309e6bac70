"""docs/glossary.md lists things that the code has, each once, and no public name in the code has a word that the page rules out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "runtimes/python/udo_runtime")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| word ")
]
RULED_OUT = sorted(word for row in ROWS for word in row[3].split(", ") if word)


@cache
def public_names() -> frozenset[str]:
    """The classes, functions and modules of the product, without those that a leading underscore hides."""
    found = set[str]()
    for file in (f for folder in PRODUCT for f in (ROOT / folder).rglob("*.py") if not re.search(r"_pb2|/templates/", str(f))):
        defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found |= {file.stem} | {node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, defined)}
    return frozenset(name for name in found if not name.startswith("_"))


def words(name: str) -> list[str]:
    """The words of a name, in lower case: `SlotKeys` and `slot_keys` have the same."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_each_word_is_told_once_and_stands_for_something_in_the_code() -> None:
    told = Counter(word for row in ROWS for word in row[0].split(", "))
    assert len(told) > 30 and max(told.values()) == 1
    names = public_names()
    assert [name for row in ROWS for name in re.findall(r"`(\w+)`", row[2]) if name not in names] == []


def test_what_is_ruled_out_is_no_word_of_the_page_itself() -> None:
    assert {word for row in ROWS for word in row[0].split()} & set(RULED_OUT) == set()


@pytest.mark.parametrize("word", sorted(set(RULED_OUT)))
def test_no_public_name_has_a_word_that_is_ruled_out(word: str) -> None:
    assert [name for name in public_names() if {word, f"{word}s"} & set(words(name))] == []


def test_a_name_is_split_into_its_words() -> None:
    assert words("TlsRelay") == words("tls_relay") == ["tls", "relay"] and words("HTTPServer") == ["http", "server"]
