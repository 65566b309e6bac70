"""The state: tuples only, so that a world can be hashed and compared; and the effect of a frame on a group."""

from __future__ import annotations

from typing import NamedTuple

# The frames of one lane, one event each: group "g" moves, "h" stays on A.
EVENTS = "ggh"
WINDOW = 2  # frames in flight at once


class Frame(NamedTuple):
    """`attempt` is the label; `n` the index in `EVENTS`."""

    attempt: int
    n: int

    @property
    def group(self) -> str:
        """The group that it touches."""
        return EVENTS[self.n]


class Group(NamedTuple):
    """The number of events so far, and what is needed to undo the attempt."""

    label: int = -1
    base: int = 0
    value: int = 0


class Checkpoint(NamedTuple):
    """The state after frame `seq` of the slot's log. `g` is None on A once it is forgotten."""

    seq: int
    g: Group | None
    h: Group


class Slot(NamedTuple):
    """A log with cursors, and the durable state. `cut`: the number of the first frame after the cut."""

    checkpoint: Checkpoint | None
    log: tuple[Frame, ...] = ()
    base: int = 1
    emitted: int = 0
    cut: int | None = None

    @property
    def end(self) -> int:
        """The number of the next frame."""
        return self.base + len(self.log)

    def frame(self, seq: int) -> Frame:
        """The frame with that number."""
        return self.log[seq - self.base]


class Owner(NamedTuple):
    """The instance on A. `cursor`: the number of the frame that it reads next."""

    cursor: int
    g: Group | None
    h: Group


class Taker(NamedTuple):
    """The instance on B. `behind`: the frame of A's log that it reads next; `cursor`: that of its own log."""

    behind: int
    g: Group
    cursor: int


class Sent(NamedTuple):
    """A frame in flight."""

    frame: Frame
    to_b: bool


class Lane(NamedTuple):
    """The producer. `moved`: it sends the group's frames to B. `flight` includes those of zombies."""

    attempt: int = 0
    next: int = 0
    moved: bool = False
    flight: tuple[Sent, ...] = ()
    answered: tuple[int, ...] = ()  # frames of this attempt


class Budget(NamedTuple):
    """The number of times that each fault may still happen."""

    crash_a: int = 0
    crash_b: int = 0
    fail: int = 0  # of an attempt; its frames in flight still arrive


class World(NamedTuple):
    """The whole state. The executor of the move has no state: each step follows from what is stored, so that any executor can go on."""

    a: Slot
    b: Slot
    owner: Owner
    taker: Taker | None
    lane: Lane
    budget: Budget


def count(group: Group, label: int) -> Group | None:
    """The group after an event of that attempt; an older attempt is undone first. None: the event is stale."""
    if label < group.label:
        return None
    start = group.value if label == group.label else group.base
    return Group(label, group.base, start + 1)
