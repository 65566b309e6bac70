"""The protocol holds in every small scope; each of its rules is needed, except the extra ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.cases import CASES, SMALL
from tests.model.explore import explore
from tests.model.rules import EXTRA, SAFETY, Rules
from tests.model.scope import Case, Scope

# The largest small case has about 35,000 states; more than the bound means that the model has grown too large for CI.
MAX_STATES = 100_000

CAUGHT = [pytest.param(case, rule, id=f"{rule}-by-{case.name}") for case in SMALL for rule in case.catches]


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_every_order_of_steps_and_faults_is_as_if_each_epoch_ran_once(case: Case) -> None:
    found = explore(Scope(case, Rules()), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete
    assert found.finished


@pytest.mark.parametrize(("case", "rule"), CAUGHT)
def test_without_a_rule_a_trace_shows_what_goes_wrong(case: Case, rule: str) -> None:
    found = explore(Scope(case, Rules().without(rule)), MAX_STATES)

    assert found.problem
    assert found.trace


def test_every_rule_is_caught_by_a_small_case() -> None:
    assert {rule for case in SMALL for rule in case.catches} == set(SAFETY)


@pytest.mark.long
@pytest.mark.parametrize("name", ["promotion", "restart", "repartition", "twin-loss", "servers"])
def test_early_refusals_are_not_what_keeps_the_protocol_safe(name: str) -> None:
    rules = replace(Rules(), **dict.fromkeys(EXTRA, False))

    found = explore(Scope(CASES[name], rules), MAX_STATES)

    assert found.problem is None, "\n".join((*found.trace, found.problem or ""))
    assert found.complete


def test_a_trace_leads_from_the_start_to_the_problem() -> None:
    found = explore(Scope(CASES["state-crash"], Rules().without("durable_trim")), MAX_STATES)

    assert found.trace[0].startswith("task p0 run 0 epoch 0 attempt 0 pushes frame 1")
    assert found.trace[-1].startswith("I1 trims the log")
    assert found.problem == "the log starts at 2, the state on disk covers only 0"
