"""A chaos run in which updates change the kind of an operator's process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.chaos import lanes
from benchmarks.chaos.changes import CHANGES
from benchmarks.chaos.faults import KILL, KILL_OPERATOR
from benchmarks.chaos.kinds import Kind
from benchmarks.chaos.node import NodeSetup


def require_right_while_processes_change(kinds: Sequence[Kind], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that answers are right while updates change between these kinds of processes, and operator processes and engines are killed."""
    monkeypatch.setattr(lanes, "AT_ONCE", 2)
    befallen = {"its process killed": (KILL_OPERATOR,), "a version changed": CHANGES}

    def missing(faults: Counter[str]) -> list[str]:
        return [what for what, kinds in befallen.items() if not any(faults[kind] for kind in kinds)]

    outcome = lanes.run(
        range(40),
        NodeSetup(kinds),
        lanes.Until(4, lambda seeds, faults: seeds >= 2 and not missing(faults)),
        weights={KILL: 2.0, KILL_OPERATOR: 20.0, **dict.fromkeys(CHANGES, 4.0)},
    )
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds >= 2
    assert not missing(outcome.faults), outcome.faults
