"""The events that a slot's engine decides about: requests to the slot, and things that have happened. Each event equals itself only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from node_manager.instances.instances import Instance
from node_manager.slots.loading import Wanted
from udo_protocol.errors import UdoError
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

StateWork = Callable[[Connection, Connection, int], None]


class SlotEvent:
    """Any event of a slot. Those that name a method of Slot are described there."""


class SlotRequest(SlotEvent):
    """A request with a caller that waits for the outcome, which the effect Tell gives once."""


@dataclass(frozen=True, eq=False)
class ServeAsked(SlotEvent):
    """Slot.serve."""

    wanted: Wanted


@dataclass(frozen=True, eq=False)
class AdoptAsked(SlotEvent):
    """Slot.adopt."""

    owner: Instance
    wanted: Wanted


@dataclass(frozen=True, eq=False)
class PrepareAsked(SlotRequest):
    """Slot.prepare. Its outcome is the instance."""

    wanted: Wanted
    check: bool = True


class PromoteAsked(SlotRequest):
    """Slot.promote. Its outcome is the instance."""


class DiscardAsked(SlotEvent):
    """Slot.discard."""


@dataclass(frozen=True, eq=False)
class StateChangeAsked(SlotRequest):
    """Slot.change_state."""

    work: StateWork


class SleepAsked(SlotRequest):
    """Slot.sleep."""


class WakeAsked(SlotEvent):
    """Slot.wake, or a frame has come for a slot that sleeps."""


@dataclass(frozen=True, eq=False)
class StopAsked(SlotEvent):
    """Slot.stop. After `within_s` loads are not waited for any more."""

    drop: bool
    letters_to: SlotKeys | None
    within_s: float


@dataclass(frozen=True, eq=False)
class SlotLoad:
    """One attempt to load, and what the instance is for: to own the slot, to stand by, or to be promoted as soon as it is ready, after
    `work` on the state, if there is any, while `token` owns the slot. `request` gets the outcome. `follow`, `serving`: loading.Load."""

    wanted: Wanted
    then: Literal["own", "stand by", "promote"]
    request: SlotRequest | None = None
    follow: bool = False
    serving: int = 0
    work: StateWork | None = None
    token: int = 0

    @property
    def update(self) -> bool:
        """Whether it brings a standby, beside an owner."""
        return self.then != "own"


@dataclass(frozen=True, eq=False)
class LoadEnded(SlotEvent):
    """A load is over: `instance` is ready, or there is an `error`, and perhaps an instance all the same."""

    load: SlotLoad
    instance: Instance | None
    error: UdoError | None


@dataclass(frozen=True, eq=False)
class InstanceExited(SlotEvent):
    """An instance has ended, asked to or not."""

    instance: Instance


class QueueLost(SlotEvent):
    """There is another queue server: the log, the answers and the owner are gone."""


@dataclass(frozen=True, eq=False)
class TimerDue(SlotEvent):
    """The timer of this name in `SlotState.timers` is due."""

    name: str
