"""A move loses, repeats and reorders nothing under each protocol; each of its rules is needed."""

from __future__ import annotations

import pytest

from elasticity.allocation.costs import Protocol
from tests.model.explore import search
from tests.model.move.model import Move
from tests.model.move.rules import WHY, Rules
from tests.model.move.state import Budget
from tests.support.selection import long

# Both at once (crash_b=1, fail=1) also hold: 175,000 states; so do both crashes with one frame more, "gghg".
CRASHES, RETRY = Budget(crash_a=1, crash_b=1), Budget(fail=1)
# The largest scope has about 70,000 states; more than the bound means that the model has grown too large for CI.
MAX_STATES = 100_000


@pytest.mark.parametrize("faults", [CRASHES, RETRY], ids=["crashes", "retry"])
@pytest.mark.parametrize("protocol", [long(Protocol.DIRECT), long(Protocol.CPA), Protocol.CPAL])
def test_a_move_is_as_if_nothing_had_moved_in_every_order_of_steps_and_faults(protocol: Protocol, faults: Budget) -> None:
    found = search(Move(protocol, Rules(), faults), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete, found
    assert found.finished


@pytest.mark.parametrize("rule", WHY)
def test_without_a_rule_of_the_move_a_trace_shows_what_goes_wrong(rule: str) -> None:
    assert any(search(Move(Protocol.CPAL, Rules().without(rule), faults), MAX_STATES).problem for faults in (CRASHES, RETRY))
