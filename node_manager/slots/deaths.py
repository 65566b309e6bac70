"""Conclusions from the deaths of a slot's owners: when to start the next one, and when the frame they died on is to blame.

Pure: numbers in, decision out. An operator may write `emitted`, so wrong numbers must harm this slot only.
"""

from __future__ import annotations

from dataclasses import dataclass

# A frame on which this many instances died, one after the other, is the cause and is answered with an error.
PER_FRAME = 3
# An owner that lived this long died of another cause than its predecessor.
SETTLED_S = 30.0
RESTART_FIRST_S, RESTART_MOST_S = 0.1, 10.0
# This many short-lived owners in a row that answer something cost no delay: a stream's bad events are to be passed quickly. From then on
# each one waits RESTART_FIRST_S longer than the last, up to RESTART_MOST_S.
_FREE = 20


@dataclass(frozen=True)
class RestartDecision:
    """Restart after `delay_s`; with `fail_head` answer the first waiting frame with an error before that."""

    delay_s: float
    fail_head: bool


class Deaths:
    """Deaths of one slot's owners, in a row."""

    def __init__(self) -> None:
        self.forget()
        self._short = 0  # owners in a row that lived less than SETTLED_S, whatever they answered

    def forget(self) -> None:
        """Forget former deaths: the operator works, or the log is a new one, so nothing can be compared with it."""
        self.in_a_row = self.on_head = 0
        self.failed_frames = 0  # in a row, without an answer between them
        self._emitted = -1

    def died(self, *, emitted: int, waiting_frames: int, lived_s: float, hung: bool, broke: bool = False) -> RestartDecision:
        """An owner died when `emitted` frames were answered and `waiting_frames` were not. `broke`: its log had to begin anew."""
        same, short = emitted == self._emitted or broke, lived_s < SETTLED_S
        self._emitted = emitted
        self._short = self._short + 1 if short else 0
        self.in_a_row = self.in_a_row + 1 if same and short else 1
        self.on_head = 0 if not waiting_frames else self.on_head + 1 if same else 1
        if not same:
            self.failed_frames = 0
        guilty = waiting_frames > 0 and (hung or self.failed_frames > 0 or self.on_head >= PER_FRAME)
        return RestartDecision(self._delay_s(), guilty)

    def failed_head(self) -> float:
        """Note that the frame was answered with an error; return the seconds until the restart. The next frame is not to blame for the
        first one's deaths, but if no frame at all is answered, the operator is: then each costs one death, and a longer pause."""
        self._emitted += 1
        self.failed_frames += 1
        self.on_head = 0
        return 0.0 if self.failed_frames == 1 else self._delay_s()

    @property
    def failing(self) -> bool:
        """Whether the operator answers nothing."""
        return self.failed_frames > 0 or self.in_a_row >= PER_FRAME

    def answered(self, emitted: int) -> bool:
        """Whether an owner has answered something since the last death."""
        return emitted > self._emitted

    def __str__(self) -> str:
        if self.failed_frames:
            return "on the last frame" if self.failed_frames == 1 else f"on the last {self.failed_frames} frames"
        return f"as {self.in_a_row} in a row did"

    def _delay_s(self) -> float:
        in_vain = backoff_s(self.in_a_row - 1, RESTART_FIRST_S, RESTART_MOST_S)
        return max(in_vain, min(RESTART_FIRST_S * max(self._short - _FREE, 0), RESTART_MOST_S))


def backoff_s(times: int, first_s: float, most_s: float) -> float:
    """Seconds to wait: none at first, then `first_s`, and twice as long each time up to `most_s`."""
    return 0.0 if times < 1 else min(first_s * 2 ** min(times - 1, 30), most_s)
