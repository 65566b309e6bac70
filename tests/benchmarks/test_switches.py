"""What the update benchmark reads from the answers' order, times and versions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rules import InvalidRun
from benchmarks.update import Update, quantiles, switches

AT = np.array([0.000, 0.001, 0.011, 0.012, 0.013])


def test_a_switch_is_seen_at_the_client() -> None:
    # given an update to version 2 asked for at -0.1 s and ready at -0.02 s
    update = Update("2", asked=-0.1, ready=-0.02, done=0.02)
    # when the third answer is the first of version 2
    found = switches([update], AT, np.array([1, 1, 2, 2, 2]))
    # then
    assert found["request_to_answer_ms"] == pytest.approx([111.0])
    assert found["preparation_ms"] == pytest.approx([80.0])
    assert found["gap_ms"] == pytest.approx([10.0])
    assert found["pause_ms"] == pytest.approx([10.0])


@pytest.mark.parametrize("versions", [[1, 1, 1, 1, 1], [1, 2, 1, 2, 2]])
def test_versions_that_do_not_change_once_per_update_make_the_run_invalid(versions: list[int]) -> None:
    with pytest.raises(InvalidRun, match="expected 1, once per update"):
        switches([Update("2", 0, 0, 0)], AT, np.array(versions))


def test_answers_of_another_version_make_the_run_invalid() -> None:
    with pytest.raises(InvalidRun, match="expected answers of version 2"):
        switches([Update("2", 0, 0, 0)], AT, np.array([1, 1, 3, 3, 3]))


def test_quantiles_name_the_slowest() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
