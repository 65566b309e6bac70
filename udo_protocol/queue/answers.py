"""Which answer belongs to which frame of a lane: told by lane and number, whatever order they come in. No I/O.

With several slots the answers of one lane come from several servers, so their order says nothing. What belongs to no frame under way
is never handed out: an answer that comes again is dropped, one to another lane or to a frame that was not sent is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from udo_protocol.errors import StrayAnswer
from udo_protocol.queue.frame import Frame


class Answers:
    """Of one lane. `number`: the last frame whose answer has been handed out; `dropped`: answers that came again."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self.number = self.dropped = 0
        self._early: dict[int, Frame] = {}  # no more than there are frames under way

    def take(self, came: Iterable[Frame], sent: int) -> list[Frame]:
        """The answers to the next frames, in order; `sent`: the number of the last one sent. StrayAnswer for any other one."""
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
