"""Stops: SIGSTOP for seconds up to a minute and a half, then SIGCONT, to one part of a platform or to two at once.

The parts never learn that they were stopped. The platform must recover soon after, by itself; the time is measured.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

STOPPED = "stopped"
INSTANCE, QUEUE, STATE, MANAGER, REGISTRY = "instance", "queue server", "state server", "node manager", "registry"
# (at least, at most, weight): most are ridden out, some outlast the time after which a server is given up.
_LENGTHS_S = ((5, 15, 6), (15, 45, 3), (45, 90, 2))
_TWO = 0.4
# The promised time of recovery, and the time after which a platform counts as broken, not just as slow on a busy machine.
SOON_S, NEVER_S = 10.0, 90.0


@dataclass(frozen=True)
class Stop:
    """The parts that are stopped, and for how long. A `scale` below 1 is for a platform whose own times are shorter by that factor."""

    who: tuple[str, ...]
    seconds: float

    @classmethod
    def draw(cls, rng: random.Random, parts: tuple[str, ...], scale: float = 1.0) -> Stop:
        """Draw a stop from the seed."""
        [(least, most, _)] = rng.choices(_LENGTHS_S, [often for *_, often in _LENGTHS_S])
        who = rng.sample(parts, 2 if rng.random() < _TWO else 1)
        return cls(tuple(who), rng.uniform(least, most) * scale)

    def __str__(self) -> str:
        return f"{' and '.join(self.who)} {STOPPED} for {self.seconds:.1f} s"


class Stops:
    """The stops of one platform. `pids` finds the processes of a part, `well` says whether a deployment is served again."""

    def __init__(self, pids: Callable[[str, str], list[int]], well: Callable[[str], bool]) -> None:
        self._pids, self._well = pids, well
        self._one = Lock()
        # The total time of stops and recovery, in which no query can be expected to progress.
        self.stood_still_s = 0.0
        self.slowest_s = 0.0
        self.broken: list[str] = []

    def happen(self, deployment: str, stop: Stop) -> list[str]:
        """Stop the parts, resume them, and wait until all is well; return what took place: nothing if another stop is under way."""
        if not self._one.acquire(blocking=False):  # stops do not queue up: a platform has to progress in between
            return []
        try:
            return self._happen(deployment, stop)
        finally:
            self._one.release()

    def _happen(self, deployment: str, stop: Stop) -> list[str]:
        found: Mapping[str, list[int]] = {part: self._pids(part, deployment) for part in stop.who}
        if not all(found.values()):
            return []
        pids = [pid for part in found.values() for pid in part]
        self.stood_still_s += stop.seconds
        try:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(stop.seconds)
        finally:
            for pid in pids:  # a process that was given up meanwhile is gone
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        back_s = self._until_well(deployment)
        self.stood_still_s += back_s
        if back_s > NEVER_S:
            self.broken.append(f"{stop} ({deployment}): nothing was well {NEVER_S:g} s after it")
        self.slowest_s = max(self.slowest_s, back_s)
        took = [f"{part} {STOPPED}" for part in stop.who]
        took += ["two at once stopped"] if len(stop.who) > 1 else []
        return [*took, f"well again {'within' if back_s <= SOON_S else 'later than'} {SOON_S:g} s after a stop"]

    def _until_well(self, deployment: str) -> float:
        since = time.monotonic()
        while (waited_s := time.monotonic() - since) <= NEVER_S and not self._well(deployment):
            time.sleep(0.05)
        return waited_s
