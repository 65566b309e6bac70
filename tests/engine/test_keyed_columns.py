"""State in columns under the keyed engine: answers, restarts and dead letters equal those of state in rows, and each reads the other's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.sdk.api import Operator
from udo_runtime.state.columns import COLUMNS, ColumnValues

from tests.support.counted import SCRIPT, Epochs, Plans, oracle, play
from tests.support.counting_slot import Count, CountFrames, slot
from tests.support.memory_slot import MemorySlot
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.state.dead_letters import DEAD, PENDING, Letter

TYPES = StateTypes({"n": "int64"})
# The forms: by event, by frame in rows, by frame in columns.
FORMS: list[tuple[type[Operator], StateTypes | None]] = [(Count, TYPES), (CountFrames, None), (CountFrames, TYPES)]


def columns(**given: Any) -> MemorySlot:
    return slot(counting=CountFrames, types=TYPES, **given)


def test_the_state_is_kept_and_stored_in_columns() -> None:
    s = columns()
    play(s, SCRIPT)
    assert s._engine is not None
    groups = [g for n, g in s._engine.sessions["q"].groups.items() if n >= 0]
    assert all(isinstance(g.values, ColumnValues) for g in groups)
    stored = [packed for (_, n), g in s.durable.groups.items() if n >= 0 for packed in [g.base, *g.deltas] if packed]
    assert stored and any(packed[0] == COLUMNS for packed in stored)


@pytest.mark.long
@pytest.mark.parametrize("commit", ["epoch", "frame"])
def test_whatever_effect_a_process_dies_at_the_next_goes_on_as_if_nothing_had_happened(commit: str) -> None:
    undisturbed = columns(commit=commit)
    assert [a.answers() for a in play(undisturbed, SCRIPT, broken_off=[1])] == oracle(SCRIPT)
    for moment in range(0, undisturbed.moments, 3):
        s = columns(commit=commit, dies=frozenset({moment}))
        assert [a.answers() for a in play(s, SCRIPT, broken_off=[1])] == oracle(SCRIPT), f"dies at moment {moment}"


@pytest.mark.long
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(Plans, st.lists(st.integers(0, 4), max_size=2), st.frozensets(st.integers(0, 150), max_size=3), st.booleans())
def test_any_epochs_attempts_and_deaths_count_like_one_process(
    epochs: Epochs, broken_off: list[int], dies: frozenset[int], by_frame: bool
) -> None:
    s = columns(commit="frame" if by_frame else "epoch", dies=dies)
    assert [a.answers() for a in play(s, epochs, broken_off)] == oracle(epochs)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.frozensets(st.integers(0, 120), max_size=3), st.integers(1, 16))
def test_bad_events_are_found_and_are_dead_letters_once_whatever_dies(dies: frozenset[int], read: int) -> None:
    epochs = [[[0, 2], [1, 13, 3]], [[0], [13, 1, 13]], [[0], [1]]]
    s = columns(policy=Policy(dead_letter=True), dies=dies)
    assert [a.answers() for a in play(s, epochs, [2], read)] == oracle(epochs, bad=(13,))
    letters = [Letter.decode(body) for body in s.durable.letters[DEAD].values()]
    assert sorted((x.epoch, x.attempt, x.row) for x in letters) == [(0, 100, 0), (1, 100, 0), (1, 100, 1)]
    assert not s.durable.letters[PENDING]


class Changing(MemorySlot):
    """A slot whose every process is of the next version: by event, in rows or in columns."""

    forms: list[int]

    def _begin(self) -> int:
        self.operator, self.types = FORMS[self.forms.pop(0) if self.forms else 2]
        return super()._begin()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(Plans, st.lists(st.integers(0, 4), max_size=2), st.frozensets(st.integers(0, 150), max_size=4), st.lists(st.integers(0, 2)))
def test_versions_of_any_form_go_on_from_each_others_state(
    epochs: Epochs, broken_off: list[int], dies: frozenset[int], forms: list[int]
) -> None:
    s = columns(dies=dies)
    s.__class__ = Changing
    s.forms = [*forms]  # type: ignore[attr-defined]
    assert [a.answers() for a in play(s, epochs, broken_off)] == oracle(epochs)
