"""Turn O(x) over time into steps without flapping: prepare, take over, stop the prepared slots, scale in (paper 3, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from elasticity.bottleneck.fuzzy import Thresholds

Step = Literal["none", "prepare", "take_over", "stop_prepared", "scale_in"]


@dataclass(frozen=True)
class Hysteresis:
    """Hysteresis, in intervals. confirm: in a row above a threshold before a step up; calm: below δ1 before a step down; settle: after a
    step, another one up needs twice `confirm` and nothing is scaled in. band: O(x) below δ2′ by more than this stops prepared slots."""

    confirm: int = 2
    calm: int = 30
    settle: int = 6
    band: float = 5.0


PATIENCE = Hysteresis()


@dataclass(frozen=True)
class OperatorHistory:
    """The state of one operator between intervals."""

    prepared: bool = False
    alarming: int = 0
    overloaded: int = 0
    idle: int = 0
    quiet: int = 0  # intervals left of `settle`


def step(
    watch: OperatorHistory, load: float | None, thresholds: Thresholds, patience: Hysteresis = PATIENCE
) -> tuple[OperatorHistory, Step]:
    """Advance by one interval. load: O(x), or None if nothing was measured, which causes no step and breaks every series."""
    if load is None:
        return replace(watch, alarming=0, overloaded=0, idle=0), "none"
    confirm = patience.confirm * (2 if watch.quiet else 1)
    watch = OperatorHistory(
        prepared=watch.prepared,
        alarming=watch.alarming + 1 if load >= thresholds.alarming else 0,
        overloaded=watch.overloaded + 1 if load >= thresholds.scale_out else 0,
        idle=watch.idle + 1 if load < thresholds.scale_in else 0,
        quiet=max(watch.quiet - 1, 0),
    )
    if watch.overloaded >= confirm:
        return OperatorHistory(quiet=patience.settle), "take_over"
    if watch.prepared:
        if load < thresholds.alarming - patience.band:
            return replace(watch, prepared=False), "stop_prepared"
    elif watch.alarming >= confirm:
        return replace(watch, prepared=True), "prepare"
    elif watch.idle >= patience.calm and not watch.quiet:
        return OperatorHistory(quiet=patience.settle), "scale_in"
    return watch, "none"
