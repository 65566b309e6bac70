"""The layout of the repository: short files of one purpose, one name per thing, helpers of tests in tests/support."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "runtimes")
# A longer file gives the reason in its first lines.
MOST_LINES = 400
MOST_PARAMETERS = 7


def _sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]


def test_no_product_file_is_long_without_a_reason_in_its_first_lines() -> None:
    for path in [*_sources(*PRODUCT), *(p for folder in PRODUCT for p in sorted((ROOT / folder).rglob("*.lua")))]:
        text = path.read_text("utf-8")
        reason = (ast.get_docstring(ast.parse(text)) or "").lower() if path.suffix == ".py" else "".join(text.splitlines()[:8])
        assert len(text.splitlines()) <= MOST_LINES or "lines" in reason, f"{path}: more than {MOST_LINES} lines, and no word why"


def test_no_function_has_more_than_seven_parameters() -> None:
    """Parameters that belong together form a named value. `udo(...)` is exempt: users write it, with completion in a notebook."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in _sources(*PRODUCT, "benchmarks")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(_parameters(node)) > MOST_PARAMETERS
    ]
    assert [f for f in found if not (f.startswith("udo_interface/spark/call.py") and f.endswith(" __call__"))] == []


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    a = function.args
    return [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs) if p.arg not in ("self", "cls")]


def test_helpers_of_tests_are_imported_from_no_test() -> None:
    for path in _sources("tests", "benchmarks"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                assert not (name.startswith("tests.") and ".test_" in name), (
                    f"{path}:{node.lineno}: move what it needs of {name} to tests/support"
                )


def test_there_is_one_attempt_among_the_helpers_of_tests() -> None:
    trees = [(path, ast.parse(path.read_text("utf-8"))) for path in _sources("tests")]
    found = [path.name for path, tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "Attempt"]
    assert found == ["attempt.py"]


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for path in _sources(*PRODUCT):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_only_one_function_skips_tests_and_it_fails_where_all_parts_are_required() -> None:
    """Any other way to skip would go unnoticed where all parts are required."""
    skipping = re.compile(r"skip|skip[iI]f|skipTest|skipUnless|SkipTest|importorskip|xfail")
    found = []
    for path in _sources("tests"):
        if path == ROOT / "tests" / "conftest.py":  # it has `require`, and the marker `long`
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if skipping.fullmatch(name):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}: say require(part, why) of tests/conftest.py")
    assert found == []
