"""Failover keeps every ENDed epoch, whatever is lost or suspected, and so does a drain; each of its rules is needed."""

from __future__ import annotations

import pytest

from tests.model.explore import search
from tests.model.failover.model import Failover
from tests.model.failover.rules import WHY, Rules
from tests.model.failover.state import Budget
from tests.support.selection import long

FAULTS = Budget(losses=1, suspicions=1, failures=1, joins=1)
# Without wrong suspicions, so that a replica is given up only for its loss.
DRAIN = Budget(losses=1, joins=1, drains=1)
# The first scope has about 80,000 states; more than the bound means that the model has grown too large for CI.
MAX_STATES = 200_000


def test_an_ended_epoch_survives_the_loss_of_a_node_a_wrong_suspicion_and_a_failed_attempt_in_every_order() -> None:
    found = search(Failover(Rules(), FAULTS), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete
    assert found.finished


@pytest.mark.long
def test_a_drain_loses_nothing_whichever_node_is_lost_at_any_moment_of_it() -> None:
    found = search(Failover(Rules(), DRAIN, kept=True), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete
    assert found.finished


@pytest.mark.parametrize("rule", [rule if rule == "owner_first" else long(rule) for rule in WHY])
def test_without_a_rule_of_failover_a_trace_shows_what_goes_wrong(rule: str) -> None:
    model = Failover(Rules().without(rule), DRAIN, kept=True) if rule == "one_more" else Failover(Rules().without(rule), FAULTS)
    found = search(model, MAX_STATES)

    assert found.problem, f"{rule}: {found}"
    assert found.trace
