"""Events of each key group of a keyed deployment over the last seconds, as counted by its owners. No I/O, no clock.

An instance publishes its counts since its start, so a load is the difference of two looks at the same instance. A group that moved was
counted in one slot and is counted in another one: the slots' differences add up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class GroupLook:
    """The counts of an owner at one look. at_s: monotonic."""

    at_s: float
    owner: str
    counts: Counts


class GroupLoads:
    """The looks of the last `kept_s` seconds at each slot. Methods may be called from any thread."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._looks: dict[tuple[str, int], deque[GroupLook]] = {}
        self._lock = Lock()

    def look(self, deployment: str, slot: int, at_s: float, owner: str, packed: bytes) -> None:
        """Add a look. `packed`: the owner's counts, from read_group_events (udo_protocol/queue/slot.py)."""
        seen = GroupLook(at_s, owner, np.frombuffer(packed, "<u8"))
        with self._lock:
            looks = self._looks.setdefault((deployment, slot), deque())
            looks.append(seen)
            while len(looks) > 1 and looks[1].at_s <= at_s - self._kept_s:
                looks.popleft()

    def forget(self, there: set[tuple[str, int]]) -> None:
        """Forget slots that are not in `there`."""
        with self._lock:
            self._looks = {key: looks for key, looks in self._looks.items() if key in there}

    def events(self, deployment: str, key_groups: int) -> list[int]:
        """Events of each key group over all slots, in the time that is kept."""
        found = np.zeros(key_groups, np.uint64)
        with self._lock:
            pairs = [pair for (name, _), looks in self._looks.items() if name == deployment for pair in pairwise(looks)]
        for before, after in pairs:
            if before.owner == after.owner and len(before.counts) <= len(after.counts):
                more = after.counts.copy()
                more[: len(before.counts)] -= np.minimum(before.counts, more[: len(before.counts)])
                n = min(key_groups, len(more))
                found[:n] += more[:n]
        return [int(n) for n in np.minimum(found, np.uint64(2**53 - 1))]
