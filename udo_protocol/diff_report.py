"""The findings of a comparison of two versions: as the comparing instance counts it, and as a diff reports it.

Both travel as JSON: the first in the slot's key `compared:<instance>`, the second in `DiffEvent.report_json` of the node
manager's API.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class FirstError:
    """The new version's first error; `event` is JSON, '' if no event is known."""

    message: str
    traceback: str = ""
    event: str = ""


@dataclass(frozen=True)
class FrameTimes:
    """Milliseconds that a version takes for a frame."""

    p50_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(kw_only=True)
class Findings:
    """The findings of a comparing instance so far: counts of frames, or of rows if the name says so."""

    frames: int = 0  # compared
    equal: int = 0
    different: int = 0
    rows: int = 0  # served rows of the compared frames
    rows_different: int = 0
    row_counts_different: int = 0  # frames answered with another number of rows
    columns: dict[str, int] = field(default_factory=dict)  # column -> rows that differ
    errors_served: int = 0
    errors_new: int = 0
    first_error: FirstError | None = None
    seen: int = 0  # frames of any kind answered while the diff ran
    not_compared: int = 0  # control frames, frames of a lane that had failed, frames whose copy was lost
    missed: int = 0  # frames for which this instance was too slow, or whose copies exceeded the bound
    served_by: dict[str, int] = field(default_factory=dict)  # version -> frames
    examples: int = 0
    ended: bool = False
    left: str = ""  # why this instance could not continue, through no fault of the new version
    looks: int = 0  # grows while this instance makes progress
    events: int = 0  # received by the new version
    answered: int = 0  # frames that it has answered
    p50_ms: float = 0.0  # the time that it takes for a frame
    p99_ms: float = 0.0

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        return asdict(self)


@dataclass(kw_only=True)
class DiffReport(Findings):
    """The findings of a diff, and what its node manager adds. `final`: nothing comes after this report."""

    version: str = ""
    serving_version: str = ""
    serving: FrameTimes = field(default_factory=FrameTimes)
    lasted_s: float | None = None  # known at its end
    died: str = ""  # why the new version could not go on
    final: bool = False

    @property
    def outcome(self) -> str:
        """`equal`, `different`, or `nothing` if no frame was compared."""
        if self.different or self.died:
            return "different"
        return "equal" if self.frames else "nothing"

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document, with the outcome."""
        return super().document() | {"outcome": self.outcome}
