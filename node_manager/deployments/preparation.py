"""The note of a prepared scale-out, on disk with its deployment: a manager that starts goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

# prepared: slots stand ready, or checkpoints are made. taking over: the deployment gets its slots, and key groups move. standing down: the
# slots that stand ready are removed.
Phase = Literal["prepared", "taking over", "standing down"]


@dataclass(frozen=True)
class Preparation:
    """The preparation of one deployment. slots: how many it is to have. numbers: of slots that stand ready (active-backup). by_hand: no
    controller decides about it."""

    phase: Phase
    slots: int
    strategy: str
    refresh_s: float
    by_hand: bool = False
    numbers: Sequence[int] = ()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "numbers": list(self.numbers)}
