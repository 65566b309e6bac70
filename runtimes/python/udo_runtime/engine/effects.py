"""The effects that an engine requests from its driver. `run` drives a generator of effects to its end.

An effect's result is sent back into the generator; an error in performing it (a subclass of UdoError) is thrown into it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from udo_protocol.errors import UdoError
from udo_protocol.queue.frame import Bytes, Header
from udo_protocol.state.dead_letters import KeyedName
from udo_runtime.execution.bad_events import BadEvent

if TYPE_CHECKING:  # keyed state needs msgpack, of which a stateless operator may bring its own version
    from udo_runtime.engine.content import CheckpointContent
    from udo_runtime.state.groups import Group

# A lane, and the pieces of the frame that answers it.
Answer: TypeAlias = tuple[str, list[Bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Execute:
    """Call `work`, which runs user code on `rows` events -> its result. The driver may measure it; rows = None: not a frame of its own."""

    rows: int | None
    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class FindSchema:
    """-> the Arrow schema registered on the slot under this id. ProtocolError if there is none."""

    identity: bytes


@dataclass(frozen=True, slots=True)
class FindSender:
    """-> (lane, number) of a frame that cannot be decoded, as the log noted them."""

    seq: int


@dataclass(frozen=True, slots=True)
class LaneOpen:
    """-> whether the lane is still open, so that its answers can be collected. The result may be a moment old."""

    lane: str


@dataclass(frozen=True, slots=True)
class LoadSession:
    """-> the Session of that name from durable state, or a new one."""

    name: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send the answers to frames first, first + 1 ... `ends`: with the last of them an epoch has ended."""

    first: int
    answers: Sequence[Answer]
    ends: bool = False


@dataclass(frozen=True, slots=True)
class FindTold:
    """-> (frame, number): the last frame that the node manager wrote into the log, and the number of the frame by which a move raised the
    route."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Read ahead the stored state of these groups of slot `source`, which will soon belong to this slot by that version of the group
    map. `copy`: the name of the copy to read, if that slot is on another node."""

    version: int
    source: int
    groups: Sequence[int]
    copy: str = ""


@dataclass(frozen=True, slots=True)
class LoadAdopted:
    """-> Adopted: the groups that the slot is to adopt by that version of the group map. `loaded`: the sessions that are in memory."""

    version: int
    loaded: Collection[str]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand these groups over: by that version of the group map they belong to another slot."""

    version: int
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Make the groups to be adopted by that version of the group map part of the state."""

    version: int


@dataclass(frozen=True, slots=True)
class FreeGroups:
    """Free the memory of these groups, which have left the state. The list is the performer's own, and empty afterwards."""

    groups: list[Group]


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Make `content`, and the fact that it covers the log up to `seq`, durable in one step; return when it is.

    `riding`: the answers to the last frames of the range, sent after this checkpoint; the next owner sends them if this one cannot.
    `ends`: an epoch ends with it. `moving`: key groups that leave the state, or come into it, in the same step.
    """

    seq: int
    emitted: int
    content: CheckpointContent
    riding: Sequence[tuple[str, bytes]] = ()
    ends: bool = False
    moving: HandOver | TakeIn | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """Trim the log up to `seq`, which durable state covers."""

    seq: int


@dataclass(frozen=True, slots=True)
class ReadReplays:
    """-> the marks of dead letters that are to be sent again: name -> '' or the epoch that has sent it."""


@dataclass(frozen=True, slots=True)
class ReadLetters:
    """-> the stored form of each of these dead letters; None if dropped in the meantime."""

    names: Sequence[KeyedName]


@dataclass(frozen=True, slots=True)
class LetterSizes:
    """-> the bytes of each existing dead letter, by hash and name: some may have been dropped from outside."""


@dataclass(frozen=True, slots=True)
class LetterRoom:
    """-> the number of further dead letters that a stateless slot may keep."""


@dataclass(frozen=True, slots=True)
class KeepLetters:
    """Make the bad events of a stateless frame durable. ProcessingError if there is no room for them."""

    seq: int
    header: Header
    found: Sequence[BadEvent]


Effect: TypeAlias = (
    Execute
    | FindSchema
    | FindSender
    | LaneOpen
    | LoadSession
    | FindTold
    | Prepare
    | LoadAdopted
    | FreeGroups
    | Send
    | WriteCheckpoint
    | Trim
    | ReadReplays
    | ReadLetters
    | LetterSizes
    | LetterRoom
    | KeepLetters
)
Steps: TypeAlias = Generator[Effect, Any, T]


def run(steps: Steps[T], perform: Callable[[Effect], Any]) -> T:
    """Perform every effect of `steps`; returns its result."""
    try:
        effect = next(steps)
        while True:
            try:
                result = perform(effect)
            except UdoError as e:
                effect = steps.throw(e)
            else:
                effect = steps.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
