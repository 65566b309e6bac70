"""Lanes with a failed frame, whose further frames are skipped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

# Lanes remembered; a lane lives for seconds, so this is far more than can be alive at once.
_MOST = 10_000


class FailedLanes:
    """The newest failed lanes, up to a bound."""

    def __init__(self, lanes: Iterable[str] = ()) -> None:
        self._lanes: OrderedDict[str, None] = OrderedDict.fromkeys(lanes)

    def __contains__(self, lane: str) -> bool:
        return lane in self._lanes

    def add(self, lane: str) -> None:
        """Add a lane; beyond the bound the oldest is removed."""
        self._lanes[lane] = None
        if len(self._lanes) > _MOST:
            self._lanes.popitem(last=False)
