"""What is noted of a prepared scale-out with its deployment, on disk: a manager that starts goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

# prepared: slots stand ready, or checkpoints are made. taking over: the deployment gets its slots, and key groups move. standing down: the
# slots that stand ready are removed.
Phase = Literal["prepared", "taking over", "standing down"]


@dataclass(frozen=True)
class Preparation:
    """Of one deployment. slots: that it is to have. numbers: of slots that stand ready (active-backup). by_hand: no controller decides."""

    phase: Phase
    slots: int
    strategy: str
    refresh_s: float
    by_hand: bool = False
    numbers: Sequence[int] = ()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "numbers": list(self.numbers)}
