"""Attempts count once while a group moves to a new slot, whatever fails around the cut; each rule is needed."""

from __future__ import annotations

import pytest

from tests.model.explore import search
from tests.model.rerouted.model import Rerouted
from tests.model.rerouted.rules import WHY, Rules
from tests.model.slots.model import Budget

EVENTS = ((1, 0), (1, 1), (0,))
FAULTS = {
    "fail": Budget(fail=1, die=1),
    "twin": Budget(twin=1, die=1),
    "rerun": Budget(rerun=1, die=1),
    "restart": Budget(restart=1, fail=1),
    "crash": Budget(crash=1, fail=1),
}
# Reaching it means that the model has grown too large for CI.
MAX_STATES = 100_000


def without_the_group(rules: Rules) -> Rerouted:
    """A model whose partition has only the group that stays."""
    return Rerouted(((0,), (0, 0)), Budget(rerun=1), rules, mine=(0,))


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_an_attempt_counts_once_whatever_fails_while_a_group_of_it_moves(faults: Budget) -> None:
    found = search(Rerouted(EVENTS, faults, Rules()), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete, found
    assert found.finished


def test_a_partition_that_has_nothing_of_the_group_ends_in_the_new_slot_too() -> None:
    found = search(without_the_group(Rules()), MAX_STATES)

    assert found.problem is None and found.complete and found.finished, found


@pytest.mark.long
@pytest.mark.parametrize("rule", WHY)
def test_without_a_rule_of_the_reroute_a_trace_shows_what_goes_wrong(rule: str) -> None:
    models = [Rerouted(EVENTS, faults, Rules().without(rule)) for faults in FAULTS.values()]
    found = [search(model, MAX_STATES) for model in (*models, without_the_group(Rules().without(rule)))]

    assert any(f.problem for f in found), f"{rule}: {found}"
