"""What a slot concludes from its owners' deaths: when to start the next one, and when the frame they died on is to blame.

Pure: numbers in, decision out.
"""

from __future__ import annotations

from dataclasses import dataclass

# A frame that so many instances died of, one after the other, is the cause and is answered with an error.
PER_FRAME = 3
# An owner that lived this long did not die of what its predecessor died of.
SETTLED_S = 30.0
RESTART_FIRST_S, RESTART_MOST_S = 0.1, 10.0


@dataclass(frozen=True)
class Verdict:
    """Restart after `delay_s`; with `fail_head` answer the first waiting frame with an error before that."""

    delay_s: float
    fail_head: bool


class Deaths:
    """Deaths of one slot's owners, in a row."""

    def __init__(self) -> None:
        self.in_a_row = self.on_head = 0
        self._emitted = -1

    def forget(self) -> None:
        """The log is a new one: nothing can be compared with it."""
        self.in_a_row, self.on_head, self._emitted = 0, 0, -1

    def died(self, *, emitted: int, waiting_frames: int, lived_s: float, hung: bool) -> Verdict:
        """An owner died when `emitted` frames were answered and `waiting_frames` were not."""
        same = emitted == self._emitted
        self._emitted = emitted
        self.in_a_row = self.in_a_row + 1 if same and lived_s < SETTLED_S else 1
        self.on_head = 0 if not waiting_frames else self.on_head + 1 if same else 1
        guilty = waiting_frames > 0 and (hung or self.on_head >= PER_FRAME)
        if guilty:
            self.in_a_row = 1
        delay_s = 0.0 if self.in_a_row == 1 else min(RESTART_FIRST_S * 2 ** (self.in_a_row - 2), RESTART_MOST_S)
        return Verdict(delay_s, guilty)
