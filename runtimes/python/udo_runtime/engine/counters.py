"""What an instance counts."""

from __future__ import annotations

from collections import deque

# Enough for a p99; recent, so that a change of behaviour shows within seconds.
_SAMPLES = 1000


class Counters:
    """Counts frames and events, and the time user code took."""

    def __init__(self) -> None:
        self.events_in = self.events_out = self.frames = self.errors = self.dead_letters = self.retries = 0
        self.busy_s = 0.0
        self._recent: deque[float] = deque(maxlen=_SAMPLES)

    def record(self, rows_in: int, rows_out: int, seconds: float) -> None:
        """One frame was answered."""
        self.frames += 1
        self.events_in += rows_in
        self.events_out += rows_out
        self.busy_s += seconds
        self._recent.append(seconds)

    def retried(self) -> None:
        """A batch is given to user code once more."""
        self.retries += 1

    def values(self) -> dict[str, float]:
        """The counters, and the time of a frame inside user code, of the last frames."""
        ordered = sorted(self._recent) or [0.0]
        return {
            "events_in": self.events_in,
            "events_out": self.events_out,
            "frames": self.frames,
            "errors": self.errors,
            "dead_letters": self.dead_letters,
            "retries": self.retries,
            "busy_s": self.busy_s,
            "p50_ms": ordered[len(ordered) // 2] * 1000,
            "p99_ms": ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] * 1000,
        }
