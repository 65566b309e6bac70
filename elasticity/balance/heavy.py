"""Heavy hitters of a stream in bounded memory: SpaceSaving (Metwally, Agrawal, El Abbadi, ICDT 2005)."""

from __future__ import annotations

from udo_protocol.errors import UsageError


class SpaceSaving:
    """Counts at most `capacity` keys. Each estimate is at most total / capacity too high and never too low.

    Every key with more than total / capacity events is counted. UsageError for a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"capacity: expected at least 1 key, got {capacity}")
        self.capacity, self.total = capacity, 0
        self._count: dict[int, int] = {}
        self._at: dict[int, dict[int, None]] = {}  # keys by count, oldest first
        self._least = 1

    def add(self, key: int) -> int:
        """Count one more event of the key and return its estimate."""
        self.total += 1
        before = self._count.get(key, 0)
        if before:
            self._leave(key, before)
        elif len(self._count) == self.capacity:
            before = self._least
            evicted = next(iter(self._at[before]))
            self._leave(evicted, before)
            del self._count[evicted]
        now = before + 1
        self._count[key] = now
        self._at.setdefault(now, {})[key] = None
        if now == 1 or self._least not in self._at:
            self._least = 1 if now == 1 else min(self._least + 1, now)
        return now

    def above(self, share: float) -> dict[int, int]:
        """Estimates of the keys with more than this share of all events, most frequent first."""
        found = {k: n for k, n in self._count.items() if n > share * self.total}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _leave(self, key: int, count: int) -> None:
        del self._at[count][key]
        if not self._at[count]:
            del self._at[count]
