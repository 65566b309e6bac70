"""A keyed query over two nodes, one of which is lost at any moment, counts once or is refused; each rule is needed."""

from __future__ import annotations

import pytest

from tests.model.explore import search
from tests.model.lost_node.model import Budget, LostNode
from tests.model.lost_node.rules import WHY, Rules

FAULTS = {
    "stop": Budget(stop=1, rerun=1),
    "lose": Budget(lose=1),
    "rerun": Budget(lose=1, rerun=1),
}
# Reaching it means that the model has grown too large for CI.
MAX_STATES = 200_000


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_query_over_nodes_of_which_one_is_lost_between_the_ends_counts_once_or_is_refused(faults: Budget) -> None:
    found = search(LostNode(2, faults, Rules()), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete, found
    assert found.finished


@pytest.mark.long
@pytest.mark.parametrize("rule", WHY)
def test_without_a_rule_of_lost_nodes_a_trace_shows_what_goes_wrong(rule: str) -> None:
    found = [search(LostNode(2, faults, Rules().without(rule)), MAX_STATES) for faults in FAULTS.values()]

    assert any(f.problem for f in found), f"{rule}: {found}"
