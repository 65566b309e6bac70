"""A canary's conditions and the measurements that they test: text in, verdict out, no I/O. Shared by command line and registry."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from udo_protocol.errors import UsageError
from udo_protocol.limits import KEY_GROUPS

# For keyed operators only: their canary's answers are compared with those served.
DIFFERENT = "different"
MEASURES = ("events", "errors", "error_rate", "p50_ms", "p99_ms", DIFFERENT)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
# The registry's API description uses this pattern too.
PATTERN = r"\s*(\w+)\s*(>=|<=|>|<)\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*"
_FORM = re.compile(PATTERN, re.ASCII)


Count = Annotated[float, Field(ge=0)]


class Measured(BaseModel):
    """Counts of canaries: events taken, frames answered with events, errors, and ms of a frame inside the operator.

    `errors` counts frames answered with an error, and deaths of an instance. For keyed operators also the frames whose answers
    were `compared` with those served, and how many of them were `different`. `answered`: frames of the slot that were answered, counted
    by the queue server whatever the runtime publishes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    events: Count = 0.0
    frames: Count = 0.0
    errors: Count = 0.0
    p50_ms: Count = 0.0
    p99_ms: Count = 0.0
    compared: Count = 0.0
    different: Count = 0.0
    answered: Count = 0.0

    @classmethod
    def together(cls, measurements: Iterable[Measured]) -> Measured:
        """The measurements of several slots or nodes combined: the sum of counts, the highest of times."""
        found = list(measurements)
        counts = ("events", "frames", "errors", "compared", "different", "answered")
        summed = {name: sum(getattr(m, name) for m in found) for name in counts}
        highest = {name: max((getattr(m, name) for m in found), default=0.0) for name in ("p50_ms", "p99_ms")}
        return cls(**summed, **highest)

    @property
    def error_rate(self) -> float:
        """Errors among the frames, 0 to 1."""
        return self.errors / (self.frames + self.errors) if self.errors else 0.0

    def __str__(self) -> str:
        times = f", p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms" if self.frames else ""
        compared = f", {self.different:.0f} of {self.compared:.0f} frames compared different" if self.compared else ""
        return f"{self.events:.0f} events, {self.errors:.0f} errors{times}{compared}"


@dataclass(frozen=True)
class Condition:
    """`measure sign bound`, such as `p99_ms > 5`."""

    measure: str
    sign: str
    number: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The condition in `text`; UsageError says what was expected and what came."""
        found = _FORM.fullmatch(text)
        if found is None or found[1] not in MEASURES:
            what = f"there is no measure {found[1]!r}" if found else "it is not of that form"
            raise UsageError(f"condition {text!r:.80}: expected MEASURE>NUMBER (or >=, <, <=) with one of {', '.join(MEASURES)}; {what}")
        return cls(found[1], found[2], found[3])

    def holds(self, m: Measured, *, at_end: bool) -> bool:
        """Whether the condition holds. Before the end, too few events mean nothing; without a frame, times mean nothing."""
        if self.measure == "events" and self.sign in ("<", "<=") and not at_end:
            return False
        if self.measure in ("p50_ms", "p99_ms") and not m.frames:
            return False
        if self.measure == DIFFERENT and not m.compared:
            return False
        return _SIGNS[self.sign](getattr(m, self.measure), float(self.number))

    def __str__(self) -> str:
        return f"{self.measure}{self.sign}{self.number}"


def verdict(rollback_if: Iterable[str], min_events: int, m: Measured, *, at_end: bool) -> str:
    """Why a canary has to be rolled back; '' if there is no reason (so far, or at the end)."""
    conditions = [Condition.parse(text) for text in rollback_if]
    if at_end and m.answered and not (m.frames or m.events or m.errors):
        return (
            f"the canary has answered {m.answered:.0f} frames, but its runtime publishes no counters (the hash stats of docs/protocol.md, "
            "Counters), so its events, errors and times are unknown. Update without a canary, or let the runtime publish them"
        )
    for condition in conditions:
        if condition.holds(m, at_end=at_end):
            return f"{condition} holds ({condition.measure} = {getattr(m, condition.measure):g}): {m}"
    if at_end and m.events < min_events:
        return f"the canary saw {m.events:.0f} events, at least {min_events} were asked for: too few to decide"
    if at_end and not m.compared and any(c.measure == DIFFERENT for c in conditions):
        return "no answer of the canary could be compared with the one served: so it is unknown whether they differ"
    return ""


def share_of_groups(percent: float, key_groups: int = KEY_GROUPS) -> list[int]:
    """The key groups whose events a keyed canary tries: `percent` of all, at least one, spread evenly, the same on every node."""
    count = max(1, round(key_groups * percent / 100))
    return [i * key_groups // count for i in range(count)]
