"""What there is: tuples only, so that a world can be hashed and compared; and what a frame does to a group."""

from __future__ import annotations

from typing import NamedTuple

# One lane's frames, one event each: group "g" moves, "h" stays on A.
EVENTS = "ggh"
WINDOW = 2  # frames on their way at once


class Frame(NamedTuple):
    """`attempt` is the label; `n` the place in `EVENTS`."""

    attempt: int
    n: int

    @property
    def group(self) -> str:
        """That it touches."""
        return EVENTS[self.n]


class Group(NamedTuple):
    """How many events it has seen, and what leads back to before the attempt."""

    label: int = -1
    base: int = 0
    value: int = 0


class Checkpoint(NamedTuple):
    """After frame `seq` of the slot's log. `g` is None on A once it was forgotten."""

    seq: int
    g: Group | None
    h: Group


class Slot(NamedTuple):
    """A log with cursors and the durable state. `cut`: number of the first frame behind the cut."""

    checkpoint: Checkpoint | None
    log: tuple[Frame, ...] = ()
    base: int = 1
    emitted: int = 0
    cut: int | None = None

    @property
    def end(self) -> int:
        """Number of the next frame."""
        return self.base + len(self.log)

    def frame(self, seq: int) -> Frame:
        """By its number."""
        return self.log[seq - self.base]


class Owner(NamedTuple):
    """The instance on A. `cursor`: the frame it reads next."""

    cursor: int
    g: Group | None
    h: Group


class Taker(NamedTuple):
    """The instance on B. `behind`: the frame of A's log it reads next; `cursor`: of its own."""

    behind: int
    g: Group
    cursor: int


class Sent(NamedTuple):
    """A frame on its way."""

    frame: Frame
    to_b: bool


class Lane(NamedTuple):
    """The producer. `moved`: it sends the group to B. `flight` holds what zombies have sent, too."""

    attempt: int = 0
    next: int = 0
    moved: bool = False
    flight: tuple[Sent, ...] = ()
    answered: tuple[int, ...] = ()  # frames of this attempt


class Budget(NamedTuple):
    """How often each fault may still happen."""

    crash_a: int = 0
    crash_b: int = 0
    fail: int = 0  # of an attempt; what it has sent still arrives


class World(NamedTuple):
    """Everything. Whoever executes the move keeps nothing: each step is chosen by what is stored, so that anybody may go on."""

    a: Slot
    b: Slot
    owner: Owner
    taker: Taker | None
    lane: Lane
    budget: Budget


def count(group: Group, label: int) -> Group | None:
    """The group after an event of that attempt; an older attempt is taken back first. None: the event is stale."""
    if label < group.label:
        return None
    start = group.value if label == group.label else group.base
    return Group(label, group.base, start + 1)
