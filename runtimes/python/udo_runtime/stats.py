"""An instance's counters, published on the queue server about once a second while it works."""

from __future__ import annotations

import time
from collections import deque

from udo_protocol.connection import Connection

# Enough for a p99; recent, so that a change of behaviour shows within seconds.
_SAMPLES = 1000
_EVERY_S = 1.0
_EXPIRES_MS = 3_600_000


class Stats:
    """Counts frames and events, and the time user code took."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.events_in = self.events_out = self.frames = self.errors = self.dead_letters = self.retries = 0
        self.busy_s = 0.0
        self._recent: deque[float] = deque(maxlen=_SAMPLES)
        self._due = 0.0
        self._published = -1

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

    def publish(self, conn: Connection, *, now: float | None = None, force: bool = False) -> None:
        """Write the counters if they are due and have changed; nothing may be under way on `conn`."""
        now = time.monotonic() if now is None else now
        if self.frames + self.errors == self._published or (now < self._due and not force):
            return
        self._due, self._published = now + _EVERY_S, self.frames + self.errors
        flat = [str(x) for pair in self.values().items() for x in pair]
        conn.transaction([("HSET", self._key, *flat), ("PEXPIRE", self._key, _EXPIRES_MS)])

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
