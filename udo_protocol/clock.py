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


class FakeClock:
    """A clock that moves only when told to, or when somebody sleeps on it."""

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
