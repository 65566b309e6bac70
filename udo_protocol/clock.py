"""Clocks that are passed in, so that tests never sleep."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The clock of code that waits."""

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


class SteadyTime:
    """Seconds since the epoch by `time`, without its jumps: suspending the machine or setting its clock does not count as time passed.
    The difference from `time` is made up at a tenth of the speed at which time passes.

    For leases: a holder that renews in time keeps its lease, whatever the clock says. May be called from any thread.
    """

    _SLEW = 0.1

    def __init__(self, time: Callable[[], float] = _time.time, monotonic: Callable[[], float] = _time.monotonic) -> None:
        self._time, self._monotonic, self._lock = time, monotonic, threading.Lock()
        self._at, self._now = monotonic(), time()

    def __call__(self) -> float:
        """The time; never goes back."""
        with self._lock:
            at = self._monotonic()
            passed, self._at = at - self._at, at
            most = self._SLEW * passed
            self._now += passed + min(max(self._time() - self._now - passed, -most), most)
            return self._now


class ObservedTime:
    """Measures how long something has been observed, by an observer that may itself hang (SIGSTOP, a paused machine).

    Time in which the observer did not run does not count: a lap is at most `most_s`.
    """

    def __init__(self, most_s: float, clock: Clock | None = None) -> None:
        self._most_s, self._clock = most_s, clock or SystemClock()
        self._at = self._clock.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._at = self._at, self._clock.monotonic()
        return min(self._at - before, self._most_s)


class FakeClock:
    """A clock that advances only when it is set, or by sleeping on it."""

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
