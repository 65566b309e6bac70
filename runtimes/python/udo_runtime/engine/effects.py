"""What an engine asks its driver for. `run` drives a generator of effects to its end.

An effect's result is sent back into the generator; an error in doing it (a subclass of UdoError) is thrown into it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from udo_protocol.errors import UdoError
from udo_protocol.queue.frame import Bytes, Header
from udo_protocol.state.dead_letters import KeyedName
from udo_runtime.execution.bad_events import BadEvent

if TYPE_CHECKING:  # a stateless operator may bring a msgpack of its own, which keyed state is kept by
    from udo_runtime.engine.content import CheckpointContent

# A lane and the pieces of the frame it is answered with.
Answer: TypeAlias = tuple[str, list[Bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Execute:
    """Call `work`, which runs user code on `rows` events -> its result. The driver may measure it; None: it is no frame of its own."""

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
    """-> the Session of that name as durable state has it, or a new one."""

    name: str


@dataclass(frozen=True, slots=True)
class Send:
    """The answers to frames first, first + 1 ... may leave now. `ends`: with the last of them an epoch has ended."""

    first: int
    answers: Sequence[Answer]
    ends: bool = False


@dataclass(frozen=True, slots=True)
class FindTold:
    """-> (frame, number): the last frame that the node manager wrote into the log, and the number of the one by which a move raised the
    route."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """By that version of the group map, soon, these groups of the slot `source` will be this one's: what is stored of them may be read
    ahead."""

    version: int
    source: int
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class LoadAdopted:
    """-> Adopted: what the slot is to adopt by that version of the group map. `loaded`: the sessions that are in memory."""

    version: int
    loaded: Collection[str]


@dataclass(frozen=True, slots=True)
class HandOver:
    """By that version of the group map these groups are another slot's."""

    version: int
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class TakeIn:
    """What was to be adopted by that version of the group map is part of the state."""

    version: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Make `content`, and that it covers the log up to `seq`, durable in one step; return when it is.

    `riding`: the answers to the last frames of the range, which leave behind this; the next owner sends them if this one cannot.
    `ends`: an epoch ends with it. `moving`: key groups leave the state, or come into it, in the same step.
    """

    seq: int
    emitted: int
    content: CheckpointContent
    riding: Sequence[tuple[str, bytes]] = ()
    ends: bool = False
    moving: HandOver | TakeIn | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """Durable state covers the log up to `seq`: it may go."""

    seq: int


@dataclass(frozen=True, slots=True)
class ReadReplays:
    """-> the marks of dead letters that are to be sent again: name -> '' or the epoch that has done so."""


@dataclass(frozen=True, slots=True)
class ReadLetters:
    """-> the stored form of each of these dead letters; None: dropped meanwhile."""

    names: Sequence[KeyedName]


@dataclass(frozen=True, slots=True)
class LetterSizes:
    """-> bytes of each dead letter there is now, by hash and name: some may have been dropped from outside."""


@dataclass(frozen=True, slots=True)
class LetterRoom:
    """-> how many more dead letters a stateless slot may keep."""


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
    """Perform every effect of `steps`; answers what it returns."""
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
