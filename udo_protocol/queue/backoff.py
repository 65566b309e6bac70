"""Linear back-off of an empty poll (paper 1, Definition III.6 and Algorithm 1): the pause grows by a fixed increment."""

from __future__ import annotations

from udo_protocol.clock import Clock, SystemClock


class LinearBackoff:
    """Pauses of 1, 2, 3 ... increments up to the ceiling; `reset` at the first event."""

    def __init__(self, increment_us: int, ceiling_us: int, clock: Clock | None = None) -> None:
        if increment_us <= 0:
            raise ValueError(f"expected a back-off increment above 0 µs, got {increment_us}")
        self._increment, self._ceiling = increment_us, ceiling_us
        self._clock = clock or SystemClock()
        self.pause_us = 0

    @property
    def at_ceiling(self) -> bool:
        """Whether the next pause would exceed the ceiling: time to park instead of polling."""
        return self.pause_us + self._increment > self._ceiling

    def pause(self) -> None:
        """Wait one increment longer than the last time, at most the ceiling."""
        self.pause_us = min(self.pause_us + self._increment, self._ceiling)
        self._clock.sleep(self.pause_us / 1e6)

    def reset(self) -> None:
        """After an event: start again with a pause of one increment."""
        self.pause_us = 0
