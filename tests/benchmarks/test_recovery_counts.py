"""The recovery benchmark counts answers that never come, or come twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.suites.recovery import Epochs


class FakeAttempt:
    """An attempt that gives these answers, one a step, and is then complete."""

    def __init__(self, answers: list[tuple[str, int]]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._left, self.complete, self._idle = list(answers), False, 0

    def step(self) -> bool:
        if self._left:
            key, n = self._left.pop(0)
            self.rows.append({"k": key, "what": f"('A', {n})"})
        else:
            assert not self.complete or self._idle < 10, "the loop spins on a complete attempt"
            self._idle += 1
            self.complete = True
        return self.complete

    def close(self) -> None: ...


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(
    ("answers", "lost", "duplicated"),
    [
        ([("a", 1), ("b", 1)], 0, 0),
        ([("a", 1)], 1, 0),
        ([("a", 1), ("b", 2)], 0, 1),
    ],
)
def test_every_answer_is_counted(
    answers: list[tuple[str, int]], lost: int, duplicated: int, end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(SimpleNamespace(), "d")
    monkeypatch.setattr(epochs, "open", lambda frames: FakeAttempt(answers))

    epochs.killed_between(["a"], ["b"], lambda: None, retry=False, end=end)

    assert (epochs.counts.lost, epochs.counts.duplicated) == (lost, duplicated)
