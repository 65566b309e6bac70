"""The journal of decisions: it replays to the same decisions, and those that change are named."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated import chain
from elasticity.scaling import journal
from elasticity.scaling.journal import Controller, Execution, Header
from elasticity.scaling.model import Sample
from tests.elasticity.applications import operator, sample
from udo_protocol.errors import UsageError

POLICIES: list[tuple[str, dict[str, Any]]] = [("accept_all", {}), ("edf", {"beta": 0.5, "idle_token_s": 120.0}), ("ds2", {}), ("fuzzy", {})]


def samples(seed: int, n: int) -> list[Sample]:
    """Samples of an application on nodes under a load that rises and falls."""
    rng = np.random.default_rng(seed)
    app, seen = chain.Chain(rng), []
    for i in range(n):
        for _ in range(6):
            app.tick(chain.PEAK_PER_S * (0.2 + (i % 40) / 30), False, 5.0)
        seen.append(app.sample(30.0 * i, chain.LIVE_MS, rng))
    return seen


def written(header: Header, seen: list[Sample]) -> list[str]:
    controller = Controller(header)
    return [journal.first_line(header), *(journal.line(controller.decide(s)) for s in seen)]


@pytest.mark.parametrize(("policy", "own"), POLICIES)
def test_a_journal_replays_to_the_same_decisions(policy: str, own: dict[str, Any]) -> None:
    lines = written(Header(policy, own, seed=7), samples(1, 80))
    header, entries = journal.read(lines)
    assert any(e.decision.granted for e in entries)
    assert list(journal.replay(header, entries)) == []
    assert [journal.first_line(header), *map(journal.line, entries)] == lines


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
def test_the_same_seed_decides_the_same_and_chance_depends_on_nothing_else(seed: int, policy: tuple[str, dict[str, Any]]) -> None:
    random.seed(seed)  # the global generator, which other code may use
    seen = samples(seed % 5, 12)
    assert written(Header(*policy, seed=3), seen) == written(Header(*policy, seed=3), seen)


def test_a_changed_setting_shows_in_the_decisions_that_change() -> None:
    header, entries = journal.read(written(Header("accept_all", {}, seed=1), samples(1, 80)))
    differing = list(journal.replay(Header("accept_all", {"s_out": 0.9}, seed=1), entries))
    assert 0 < len(differing) < len(entries)
    entry, again = differing[0]
    assert entry.decision != again


def test_a_last_line_that_a_crash_cut_off_is_left_out() -> None:
    lines = written(Header("ds2", {}, seed=1), [sample(operator(), at_s=30.0 * i) for i in range(3)])
    _, entries = journal.read([*lines[:-1], lines[-1][:50]])
    assert [e.number for e in entries] == [0, 1]


def test_damage_is_named_by_its_line() -> None:
    lines = written(Header("ds2", {}, seed=1), [sample(operator(), at_s=30.0 * i) for i in range(3)])
    with pytest.raises(UsageError, match="line 2: expected a JSON object"):
        journal.read([lines[0], lines[1][:50], *lines[2:]])
    with pytest.raises(UsageError, match="line 2: expected decision 0, got 1"):
        journal.read([lines[0], *lines[2:]])
    with pytest.raises(UsageError, match="line 1: expected a journal of format 1"):
        journal.read([json.dumps(json.loads(lines[0]) | {"format": 2})])
    with pytest.raises(UsageError, match="line 1: expected a journal of format 1"):
        journal.read([])


def test_what_became_of_decisions_is_read_beside_them_and_changes_no_replay() -> None:
    lines = written(Header("ds2", {}, seed=1, about={"deployment": "d"}), [sample(operator(), at_s=30.0 * i) for i in range(3)])
    done, failed = Execution(0, 1.5, 2), Execution(1, 40.0, 1, "it does not load")
    mixed = [*lines[:2], journal.execution_line(done), lines[2], journal.execution_line(failed), lines[3]]
    header, entries, executions = journal.read_all(mixed)
    assert header.about == {"deployment": "d"} and [e.number for e in entries] == [0, 1, 2]
    assert executions == {0: done, 1: failed}
    assert list(journal.replay(header, entries)) == []
    with pytest.raises(UsageError, match="line 3: expected a decision or what became of one, got '{\"exec"):
        journal.read_all([*lines[:2], '{"execution": {"number": 1}}', *lines[2:]])
