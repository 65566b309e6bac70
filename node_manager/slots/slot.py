"""One slot of a deployment: keeps an owner answering, replaces it when it dies or hangs, prepares and promotes updates.

This is the front: each request becomes an event, about which the engine decides (engine.py) in the slot's thread (driver.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from node_manager.instances.instances import Instance
from node_manager.servers.binaries import Role
from node_manager.slots import engine
from node_manager.slots import events as on
from node_manager.slots.driver import SlotDriver
from node_manager.slots.loading import NodeParts, Wanted
from node_manager.slots.sleep import Wake
from udo_protocol.errors import Unavailable, by_code
from udo_protocol.queue.keys import SlotKeys


@dataclass(frozen=True)
class SlotView:
    """The present state of a slot, for status, statistics and metrics."""

    deployment: str
    number: int
    pinned: str
    wanted: Wanted | None
    state: str
    owner: Instance | None
    restarts: int
    last_error: str
    events_per_s: float
    totals: dict[str, float]


class Slot(SlotDriver):
    """See the module. The methods may be called from any thread."""

    def __init__(
        self, node: NodeParts, deployment: str, number: int, pinned: str = "", on_idle: Callable[[Slot], None] | None = None
    ) -> None:
        super().__init__(node, deployment, number, on_idle and (lambda: on_idle(self)))
        self.pinned = pinned
        self.chosen_at = 0.0  # when it was last chosen for a lane
        self.start()

    def _ask(self, event: on.SlotEvent) -> Future[Any]:
        """Post the event; return the outcome, if it is a request."""
        done: Future[Any] = Future()
        if isinstance(event, on.SlotRequest):
            self._asked[event] = done
        if self.stopped or not self._event(event):
            raise engine.has_been_stopped(self._state)
        return done

    def serve(self, wanted: Wanted) -> None:
        """Start serving; a slot that already serves something else changes over as in an update."""
        self._ask(on.ServeAsked(wanted))

    def adopt(self, owner: Instance, wanted: Wanted) -> None:
        """Go on with the owner that a former manager left."""
        self._ask(on.AdoptAsked(owner, wanted))

    def prepare(self, wanted: Wanted, *, check: bool = True) -> Future[Instance]:
        """Load `wanted` as a standby. SchemaError if running queries could not go on with it, unless `check` is off."""
        return self._ask(on.PrepareAsked(wanted, check))

    def promote(self) -> Future[Instance]:
        """Make the prepared standby the owner. Conflict if there is none."""
        return self._ask(on.PromoteAsked())

    def discard(self) -> None:
        """Give up a prepared update."""
        self._ask(on.DiscardAsked())

    def change_state(self, work: on.StateWork) -> Future[None]:
        """Run `work(state, queue, token)` while `token`, and so no instance, owns the slot; done when a fresh owner serves.

        The owner has its sessions in memory, so it is replaced, as in an update to the same version: the next one is loaded first, and only
        `work` runs between the two. Conflict while an update is under way.
        """
        return self._ask(on.StateChangeAsked(work))

    def sleep(self) -> Future[None]:
        """Be without an instance until the next frame comes. Conflict if the slot is in use, or keeps state."""
        return self._ask(on.SleepAsked())

    def wake(self) -> None:
        """Start an instance, if it sleeps."""
        self._event(on.WakeAsked())

    @property
    def asleep(self) -> bool:
        """Whether it is without an instance until the next frame comes."""
        return self._state.asleep

    def wakes(self) -> list[Wake]:
        """Ends of sleeps that were not fetched yet, oldest first."""
        found = []
        while self._bell.wakes:
            found.append(self._bell.wakes.popleft())
        return found

    def server_restarted(self, role: Role) -> None:
        """Handle the loss of a server. The queue server's log, answers and owner are gone: start over. The state server is as it was."""
        self.post(self.disconnect)
        if role == "queue":
            self._event(on.QueueLost())

    def stop(self, *, drop: bool, letters_to: SlotKeys | None = None) -> Future[bool]:
        """Stop all instances; with `drop` also remove every key of the slot, but move dead letters to the slot `letters_to`, if given. The
        result: whether they were removed."""
        self._event(on.StopAsked(drop, letters_to, self.node.settings.stop_grace_s + 6))
        return self._ended

    def wait_serving(self, timeout_s: float) -> Instance | None:
        """Wait until it serves; return the owner, or None while a crashed one is being replaced (its queue takes frames all the same).

        Raises the error with which the operator failed to load, or Unavailable after `timeout_s`.
        """
        deadline, s, where = time.monotonic() + timeout_s, self._state, f"node {self.node.settings.node}"
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    if (error := s.error) is not None:
                        raise by_code(error.code, str(error))
                    if s.served:
                        return s.owner
                    if self.stopped:
                        raise Unavailable(f"deployment {self.deployment} is being removed from {where}")
                    if not self._changed.wait(deadline - time.monotonic()):
                        what = s.wanted.reference if s.wanted else self.deployment
                        see = f"see: udo logs {self.deployment}"
                        raise Unavailable(f"operator {what} is still starting on {where} after {timeout_s:g} s; {see}")
            finally:
                self._waiting -= 1
                self.used_at = time.monotonic()

    def look(self) -> None:
        """Check the owner and the log now, not only when the next look is due."""
        self._event(on.TimerDue("look"))

    def view(self) -> SlotView:
        """Its present state."""
        s, watch = self._state, self._watch
        owner, trouble, next_try = s.owner, s.trouble, s.timers.get("replace")
        without = "failed" if s.error else "asleep" if s.asleep else "starting"
        state = trouble[0] if trouble else owner.life.state if owner else without
        last = trouble[1] if trouble else s.last_error
        if owner is None and next_try is not None and (next_try_s := next_try - time.monotonic()) >= 1:
            last += f"; next try in {next_try_s:.0f} s"
        number, pinned, totals = self.number, self.pinned, dict(watch.totals)
        return SlotView(self.deployment, number, pinned, s.wanted, state, owner, s.restarts, last, watch.events_per_s, totals)

    def condition(self) -> tuple[str, str] | None:
        """Its condition for the registry: (answering, failing, broken or failed; why). None while it starts for the first time."""
        s = self._state
        if (trouble := s.trouble) is not None:
            return trouble[0], f"{trouble[1]}; restarts {s.restarts}, the last one after {s.pause_s:g} s"
        if (error := s.error) is not None:
            return "failed", str(error)
        return ("answering", "") if s.served else None

    @property
    def wanted(self) -> Wanted | None:
        """The version that the slot serves or tries to serve."""
        return self._state.wanted

    @property
    def updating(self) -> bool:
        """Whether another version is prepared, is being prepared, or is about to serve."""
        return self._state.updating
