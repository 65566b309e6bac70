"""Time as a value that is handed in, so that tests never sleep."""

from __future__ import annotations

import time as _time
from typing import Protocol


class Clock(Protocol):
    """What code that waits may use."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point, never going back."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(_time.monotonic)
    time = staticmethod(_time.time)
    sleep = staticmethod(_time.sleep)


class ObservedTime:
    """Measures how long something has been observed, by an observer that may hang itself (SIGSTOP, a paused machine).

    Time in which it did not run does not count: one lap is `most_s` at most.
    """

    def __init__(self, most_s: float, clock: Clock | None = None) -> None:
        self._most_s, self._clock = most_s, clock or SystemClock()
        self._at = self._clock.monotonic()

    def lap(self) -> float:
        """Seconds since the last one."""
        before, self._at = self._at, self._clock.monotonic()
        return min(self._at - before, self._most_s)


class FakeClock:
    """A clock that advances only on request, or by sleeping on it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
