"""A keyed attempt over two slots counts as if over one; each rule is needed, and so are each slot's own undo and candidate."""

from __future__ import annotations

import pytest

from tests.model.explore import search
from tests.model.rules import Rules as SlotRules
from tests.model.slots.model import Budget, Slots
from tests.model.slots.rules import WHY, Rules
from tests.support.selection import long

# An epoch for both slots, then one whose events all go to the first, then one for both again.
EVENTS = ((0, 1), (0,), (1, 0))
FAULTS = {
    "fail": Budget(fail=1, die=1),
    "twin": Budget(twin=1, die=1),
    "rerun": Budget(rerun=1, die=1),
    "restart": Budget(restart=1, fail=1),
}
# The largest scope has about 20,000 states; more than the bound means that the model has grown too large for CI.
MAX_STATES = 100_000


@pytest.mark.long
@pytest.mark.parametrize("fault", ["fail", long("twin"), long("rerun"), "restart"])
def test_an_attempt_over_two_slots_counts_once_whatever_fails_between_its_ends(fault: str) -> None:
    found = search(Slots(EVENTS, FAULTS[fault], Rules()), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete, found
    assert found.finished


@pytest.mark.parametrize("rule", WHY)
def test_without_a_rule_of_several_slots_a_trace_shows_what_goes_wrong(rule: str) -> None:
    assert any(search(Slots(EVENTS, faults, Rules().without(rule)), MAX_STATES).problem for faults in FAULTS.values())


@pytest.mark.parametrize("rule", ["undo_after_end", "candidate", "stale_label"])
def test_each_slot_needs_its_own_rules_between_the_end_at_one_slot_and_at_the_next(rule: str) -> None:
    assert any(search(Slots(EVENTS, faults, Rules(), SlotRules().without(rule)), MAX_STATES).problem for faults in FAULTS.values())
