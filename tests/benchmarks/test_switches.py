"""The figures that the update benchmark derives from the answers' order, times and versions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.rules import InvalidRun
from benchmarks.suites.update import Update, switches

AT = np.array([0.000, 0.001, 0.011, 0.012, 0.013])
NO_ENDS = np.array([], np.int64)


def test_a_switch_is_seen_at_the_client() -> None:
    # given an update to version 2 asked for at -0.1 s and ready at -0.02 s
    update = Update("2", asked=-0.1, ready=-0.02, done=0.02)
    # when the third answer is the first of version 2
    found = switches([update], AT, np.array([1, 1, 2, 2, 2]), NO_ENDS)
    # then
    assert found.request_to_answer_ms == pytest.approx([111.0])
    assert found.preparation_ms == pytest.approx([80.0])
    assert found.gap_ms == pytest.approx([10.0])
    assert found.pause_ms == pytest.approx([10.0])


def test_pauses_at_the_ends_of_epochs_are_told_apart() -> None:
    # given a switch after the second answer, and epochs that end there and, far from any update, after the sixth
    at = np.append(AT, [9.000, 9.030])
    update = Update("2", asked=-0.1, ready=-0.02, done=0.02)
    # when
    found = switches([update], at, np.array([1, 1, 2, 2, 2, 2, 2]), np.array([1, 5]))
    # then
    assert found.gap_ms == pytest.approx([10.0])
    assert found.gap_within_epoch_ms == []
    assert found.epoch_end_pause_ms == pytest.approx([30.0])


@pytest.mark.parametrize("versions", [[1, 1, 1, 1, 1], [1, 2, 1, 2, 2]])
def test_versions_that_do_not_change_once_per_update_make_the_run_invalid(versions: list[int]) -> None:
    with pytest.raises(InvalidRun, match="expected 1, once per update"):
        switches([Update("2", 0, 0, 0)], AT, np.array(versions), NO_ENDS)


def test_answers_of_another_version_make_the_run_invalid() -> None:
    with pytest.raises(InvalidRun, match="expected answers of version 2"):
        switches([Update("2", 0, 0, 0)], AT, np.array([1, 1, 3, 3, 3]), NO_ENDS)
