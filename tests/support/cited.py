"""Tests cited by documents and tables: by a file below tests/ and a name, `docs/test_site.py::test_...`."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def require_cited(file: str, name: str = "") -> None:
    """Raise AssertionError unless the file has tests, and if `name` is given, one of that name."""
    path = TESTS / file
    assert path.is_file(), f"there is no {file}"
    module = ast.parse(path.read_text("utf-8"))
    tests = {n.name for n in module.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}
    assert tests, f"{file} has no tests"
    assert not name or name in tests, f"{file} has no test {name}"
