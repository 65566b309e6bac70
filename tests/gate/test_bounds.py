"""A bound that only ends a hang is long enough for the busiest machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A shorter one is not a bound, but a wait that the test expects to time out.
_SHORT_S = 5
_KEYWORDS = ("timeout", "timeout_s")
_METHODS = ("wait", "join", "result")


def bare(call: ast.Call) -> Iterator[ast.Constant]:
    """The bare numbers that this call takes as bounds."""
    given = [k.value for k in call.keywords if k.arg in _KEYWORDS]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
        given += call.args[:1]
    yield from (g for g in given if isinstance(g, ast.Constant) and isinstance(g.value, int | float) and g.value > _SHORT_S)


def hiding(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that give the name `bound` to something else in a file that imports it: other uses in that function would fail."""
    imported = any(a.name == "bound" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names)
    for node in ast.walk(tree) if imported else ():
        if (isinstance(node, ast.Name) and node.id == "bound" and isinstance(node.ctx, ast.Store)) or (
            isinstance(node, ast.arg) and node.arg == "bound"
        ):
            yield node


def test_a_bound_is_written_as_bound_of_seconds() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{number.lineno}: {number.value} is no bound on a busy machine; write bound({number.value})"
        for path in sorted(TESTS.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        for number in bare(call)
    ]
    assert found == []


def test_nothing_else_is_called_bound_where_bounds_are() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"  # type: ignore[attr-defined]
        for path in sorted(TESTS.rglob("*.py"))
        for node in hiding(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_the_rule_sees_a_bare_number_and_leaves_short_and_scaled_ones() -> None:
    source = "p.wait(10)\nrun(x, timeout=20)\np.wait(bound(10))\np.join(0.2)\nwait_until(f, 30, 'x')\n"
    calls = [c for c in ast.walk(ast.parse(source)) if isinstance(c, ast.Call)]
    assert sorted(n.value for c in calls for n in bare(c)) == [10, 20]
