"""A slot's life is a table of allowed moves, which the docs draw and the slots follow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from node_manager.slots.lifecycle import SLOT
from udo_protocol.errors import Conflict
from udo_protocol.lifecycle import Lifecycle, diagram

ROOT = Path(__file__).parents[2]


def test_a_slot_that_is_being_stopped_never_serves_again() -> None:
    life = Lifecycle(SLOT, "new", "slot fraud-0")
    for state in ("starting", "serving", "serving", "replacing", "failed", "serving", "stopping"):
        life.move(state)
    with pytest.raises(Conflict, match="slot fraud-0 is stopping: it may become stopped, not serving"):
        life.move("serving")


def test_the_table_of_a_slots_life_is_closed_and_its_diagram_stands_in_the_docs() -> None:
    assert {n for nexts in SLOT.values() for n in nexts} <= set(SLOT)
    assert diagram(SLOT) in (ROOT / "docs" / "design" / "instances.md").read_text("utf-8")


def test_a_slots_state_changes_in_no_other_way_than_by_a_move_of_its_table() -> None:
    moves, assigned = set(), []
    for path in sorted((ROOT / "node_manager" / "slots").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("life.move"):
                moves |= {c.value for c in ast.walk(node.args[0]) if isinstance(c, ast.Constant)}
            targets = node.targets if isinstance(node, ast.Assign) else []
            assigned += [f"{path.name}: {ast.unparse(t)}" for t in targets if ast.unparse(t).endswith("life.state")]
    assert moves == set(SLOT) - {"new"}, "each state but the first is reached by a move"
    assert assigned == ["driver.py: instance.life.state"], "of an adopted instance, whose former manager may have died before it said so"
