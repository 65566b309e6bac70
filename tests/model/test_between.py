"""A key group that moves to another node is in one slot and loses nothing, whatever is restarted meanwhile; each rule is needed."""

from __future__ import annotations

import pytest

from tests.model.between.model import Between, Budget
from tests.model.between.rules import WHY, Rules
from tests.model.explore import search
from tests.support.selection import long

FAULTS = {
    "stop a": Budget(stop_a=2, fail=1),
    "stop b": Budget(stop_b=2, die=1),
    "both": Budget(stop_a=1, stop_b=1, fail=1),
}
# Reaching it means that the model has grown too large for CI.
MAX_STATES = 200_000


@pytest.mark.parametrize("fault", [long("stop a"), long("stop b"), "both"])
def test_a_group_that_moves_between_nodes_counts_once_whichever_of_them_is_restarted(fault: str) -> None:
    found = search(Between(2, FAULTS[fault], Rules()), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete, found
    assert found.finished


@pytest.mark.long
@pytest.mark.parametrize("rule", WHY)
def test_without_a_rule_of_a_move_between_nodes_a_trace_shows_what_goes_wrong(rule: str) -> None:
    found = [search(Between(2, faults, Rules().without(rule)), MAX_STATES) for faults in FAULTS.values()]

    assert any(f.problem for f in found), f"{rule}: {found}"
