"""Matches answers to the frames of a lane by lane and number, in whatever order they come. No I/O.

With several slots the answers of one lane come from several servers, so their order means nothing. Answers that belong to no frame
under way are never returned: a repeated answer is dropped, an answer to another lane or to a frame that was not sent is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from udo_protocol.errors import StrayAnswer
from udo_protocol.queue.frame import Frame


class Answers:
    """The answers of one lane. `number`: the last frame whose answer has been returned; `dropped`: the number of repeated answers."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self.number = self.dropped = 0
        self._early: dict[int, Frame] = {}  # at most as many as frames under way

    def take(self, came: Iterable[Frame], sent: int) -> list[Frame]:
        """The answers to the next frames, in order; `sent`: the number of the last frame sent. StrayAnswer for an answer to no frame."""
        for answer in came:
            header = answer.header
            if header.lane != self._lane:
                raise StrayAnswer(f"lane {self._lane} was given the answer to frame {header.number} of lane {header.lane:.200}")
            if not 1 <= header.number <= sent:
                raise StrayAnswer(f"lane {self._lane} was given the answer to frame {header.number}; it has sent {sent}")
            if header.number <= self.number or header.number in self._early:
                self.dropped += 1
            else:
                self._early[header.number] = answer
        found = []
        while self.number + 1 in self._early:
            self.number += 1
            found.append(self._early.pop(self.number))
        return found
