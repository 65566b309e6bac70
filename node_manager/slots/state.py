"""The state of one slot. Only the engine changes it, in the slot's thread; other threads may read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from node_manager.instances.instances import Instance
from node_manager.slots.deaths import Deaths
from node_manager.slots.events import SlotLoad, StopAsked
from node_manager.slots.lifecycle import SLOT
from node_manager.slots.loading import Wanted
from udo_protocol.errors import UdoError
from udo_protocol.lifecycle import Lifecycle


@dataclass(eq=False)
class SlotState:
    """See the module. Times are in seconds; `now` is set by the driver before each event, and with each result of an effect."""

    deployment: str
    number: int
    node: str
    life: Lifecycle = field(init=False)
    now: float = 0.0
    wanted: Wanted | None = None  # what it serves or tries to serve
    owner: Instance | None = None  # while it is serving
    owner_since: float | None = None  # of the last owner; None if there never was one
    standby: tuple[Instance, Wanted] | None = None  # of an update, ready to be promoted
    was_updating: bool = False  # when the event that is being handled came
    loads: dict[SlotLoad, bool] = field(default_factory=dict)  # under way; False: cancelled, so that it ends soon
    timers: dict[str, float] = field(default_factory=dict)  # look, replace (the owner), kept (state is given up), stop -> when
    asleep: bool = False  # it has no instance until the next frame comes
    sleeps: int = 0  # so far
    stop_asked: StopAsked | None = None
    error: UdoError | None = None  # with which it failed
    last_error: str = ""  # the latest error of any kind, for people
    # Why it does not answer while it is restarted again and again: ("failing" or "broken", how), for people.
    trouble: tuple[str, str] | None = None
    load_failures: int = 0  # in a row, of owners
    restarts: int = 0
    pause_s: float = 0.0  # before the last restart
    deaths: Deaths = field(default_factory=Deaths)
    hung: Instance | None = None  # the owner that was killed as hanging
    status_stored: bool = True  # assumed at first: the first promotion removes a status that a former manager left

    def __post_init__(self) -> None:
        self.life = Lifecycle(SLOT, "new", f"slot {self.deployment}-{self.number}")

    @property
    def served(self) -> bool:
        """Whether the slot ever had an owner."""
        return self.owner_since is not None

    @property
    def lived_s(self) -> float:
        """How long ago the last owner became the owner."""
        return self.now - (self.owner_since or 0.0)

    @property
    def keyed(self) -> bool:
        """Whether the served operator is keyed."""
        return self.wanted is not None and bool(self.wanted.image.manifest.key)

    @property
    def owner_loading(self) -> bool:
        """Whether an owner is being loaded."""
        return any(goes_on and not load.update for load, goes_on in self.loads.items())

    @property
    def updating(self) -> bool:
        """Whether another version is prepared, is being prepared, or is about to serve."""
        return self.was_updating or self.standby is not None or any(load.update for load in tuple(self.loads))

    @property
    def ending(self) -> bool:
        """Whether it is being stopped, or has been."""
        return self.life.state in ("stopping", "stopped")
