"""The effects that a slot's engine requests from its driver, as an instance's engine does (udo_runtime/engine/effects.py).

An effect's result is sent back into the generator; an error in performing it is thrown into it: ServerLost from any effect that
asks a server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from node_manager.instances.instances import Instance
from node_manager.slots.events import SlotLoad, SlotRequest, StateWork
from node_manager.slots.loading import Wanted
from udo_protocol.errors import UdoError
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import SlotStats


@dataclass(frozen=True)
class SlotEffect:
    """Any effect of a slot."""


T = TypeVar("T")
Steps: TypeAlias = Generator[SlotEffect, Any, T]


@dataclass(frozen=True)
class Tell(SlotEffect):
    """Tell a request its outcome; None: nobody waits for it."""

    request: SlotRequest | None
    instance: Instance | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Report(SlotEffect):
    """Write this to the log."""

    what: str
    about: Mapping[str, Any]
    level: Literal["info", "error"] = "error"


@dataclass(frozen=True)
class StartLoad(SlotEffect):
    """Load in another thread; LoadEnded follows, whatever happens."""

    load: SlotLoad


@dataclass(frozen=True)
class CancelLoad(SlotEffect):
    """Let a load end soon; LoadEnded follows all the same."""

    load: SlotLoad


@dataclass(frozen=True)
class Attend(SlotEffect):
    """Record an instance as a standby, or as the owner that it was for a former manager; InstanceExited follows when it ends."""

    instance: Instance
    adopted: bool = False


@dataclass(frozen=True)
class PassOwnership(SlotEffect):
    """Change the slot's token, so that from here on this instance answers. Fenced if a newer token owns the slot, Conflict if it is too
    late to go back. `former`: what the slot served; `live`: its owner answered until now."""

    instance: Instance
    wanted: Wanted
    former: Wanted | None
    live: bool


@dataclass(frozen=True)
class AnnounceOwner(SlotEffect):
    """Record the new owner, and with `clear_status` tell producers that the slot serves again."""

    owner: Instance
    clear_status: bool


@dataclass(frozen=True)
class Retire(SlotEffect):
    """Stop an instance, in another thread: after it has finished, or at once since it does not work, or since it has lost its server."""

    instance: Instance
    why: Literal["replaced", "useless", "server lost"] = "replaced"


@dataclass(frozen=True)
class Remove(SlotEffect):
    """Remove an instance that has ended by itself -> the last lines of its log."""

    instance: Instance
    owned: bool


@dataclass(frozen=True)
class Kill(SlotEffect):
    """Kill an instance, for a reason that its end will name."""

    instance: Instance
    reason: str


@dataclass(frozen=True)
class ReadStats(SlotEffect):
    """-> SlotStats; SlotBroken if the operator has corrupted the log. `look`: also close lanes that were abandoned."""

    look: bool = False


@dataclass(frozen=True)
class WatchOwner(SlotEffect):
    """Measure the owner's rate -> the seconds for which it could have answered the frame that waits longest, and did not."""

    owner: Instance
    since: float
    stats: SlotStats
    keyed: bool


@dataclass(frozen=True)
class SetStatus(SlotEffect):
    """Tell producers why the slot does not serve."""

    error: UdoError


@dataclass(frozen=True)
class FailHead(SlotEffect):
    """Answer the first waiting frame with an error, since the instance died on it -> whether there was one. PeerError if it cannot be
    answered. `how` it died; `log`: its last lines."""

    instance: Instance
    how: str
    log: str
    keyed: bool


@dataclass(frozen=True)
class BeginLogAnew(SlotEffect):
    """Replace the log by an empty one. Fenced if a newer token owns the slot."""

    keyed: bool


class NextToken(SlotEffect):
    """-> a token newer than all earlier ones."""


@dataclass(frozen=True)
class ChangeState(SlotEffect):
    """Do the work while its token owns the slot. Fenced if a newer token does, or any error of the work."""

    work: StateWork
    token: int


class AwaitTurn(SlotEffect):
    """Wait, for a moment at most, for the best time to promote a keyed slot's standby."""


@dataclass(frozen=True)
class CanGoBack(SlotEffect):
    """-> whether the state from before an update is kept for the version with this digest."""

    digest: str


@dataclass(frozen=True)
class KeptFor(SlotEffect):
    """-> the seconds for which the state from before an update is still kept; None if none is, or if this owner goes back to it."""

    owner: Instance


class ForgetKept(SlotEffect):
    """Give up the state from before an update."""


@dataclass(frozen=True)
class Listen(SlotEffect):
    """Wait, in another thread, for a frame after `emitted`; WakeAsked follows, unless this sleep, number `sleep`, has ended before."""

    emitted: int
    sleep: int


@dataclass(frozen=True)
class Finish(SlotEffect):
    """Wait, up to that time, for what runs in other threads; with `drop` remove the slot's keys, but move dead letters to `letters_to`, if
    given; end the thread."""

    drop: bool
    letters_to: SlotKeys | None
    within_s: float
