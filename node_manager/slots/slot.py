"""One slot of a deployment: keeps an owner answering, replaces it when it dies or hangs, prepares and promotes updates.

All decisions are taken by the slot's own thread (worker.py), one step after the other; work that takes time (loading, stopping) runs in
other threads and reports back as a step. While idle, the thread sleeps until its next look at the queue. This module is the front: it
passes requests, and events of instances, to the part that handles them. The states of a slot are the table in lifecycle.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from node_manager.instances.instances import Instance
from node_manager.servers.binaries import Role
from node_manager.slots.loading import Load, NodeParts, Wanted, log_end
from node_manager.slots.loads import Loads
from node_manager.slots.ownership import Ownership
from node_manager.slots.promotions import Promotions, StateWork
from node_manager.slots.restarts import Restarts
from node_manager.slots.sleep import Sleep, Wake
from node_manager.slots.thread import SlotThread
from udo_protocol.errors import Fenced, OperatorError, ServerLost, SlotBroken, UdoError
from udo_protocol.queue import slot
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import dead_letters, replication

_LOOK_LEAST_S, _LOOK_MOST_S = 1.0, 5.0


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


class Slot(SlotThread):
    """See the module. The methods up to `wanted` may be called from any thread."""

    def __init__(
        self, node: NodeParts, deployment: str, number: int, pinned: str = "", on_idle: Callable[[Slot], None] | None = None
    ) -> None:
        super().__init__(node, deployment, number)
        self.pinned = pinned
        self.used_at = time.monotonic()
        self.chosen_at = 0.0  # when it was last chosen for a lane
        self._on_idle = on_idle
        self._ended: Future[None] = Future()
        self._ownership = Ownership(self)
        self._loads = Loads(self, self._ownership, self._loaded)
        self._restarts = Restarts(self, self._ownership, self._loads)
        self._promotions = Promotions(self, self._ownership, self._loads, self._restarts)
        self._sleep = Sleep(self, self._ownership, self._loads, self._restarts)
        self.at("look", _LOOK_LEAST_S, self._look)
        self.start()

    # -- asked from outside ------------------------------------------------------------------------------------------

    def _ask(self, step: Callable[[], None]) -> None:
        if self.stopped:
            raise self.has_been_stopped()
        self.post(step)

    def serve(self, wanted: Wanted) -> None:
        """Start serving; a slot that already serves something else changes over as in an update."""
        self._ask(lambda: self._serve(wanted))

    def adopt(self, owner: Instance, wanted: Wanted) -> None:
        """Go on with the owner that a former manager left."""
        self._ask(lambda: self._adopt(owner, wanted))

    def prepare(self, wanted: Wanted, *, check: bool = True) -> Future[Instance]:
        """Load `wanted` as a standby. SchemaError if running queries could not go on with it, unless `check` is off."""
        load = Load(wanted, update=True, follow=True)
        self._ask(lambda: self._promotions.prepare(load, check=check))
        return load.done

    def promote(self) -> Future[Instance]:
        """Make the prepared standby the owner. Conflict if there is none."""
        done: Future[Instance] = Future()
        self._ask(lambda: self._promotions.promote(done))
        return done

    def discard(self) -> None:
        """Give up a prepared update."""
        self._ask(self._loads.discard_update)

    def change_state(self, work: StateWork) -> Future[None]:
        """Run `work(state, queue, token)` while `token`, and so no instance, owns the slot; done when a fresh owner serves.

        The owner has its sessions in memory, so it is replaced, as in an update to the same version: the next one is loaded first, and only
        `work` runs between the two. Conflict while an update is under way.
        """
        done: Future[None] = Future()
        self._ask(lambda: self._promotions.change_state(work, done))
        return done

    def sleep(self) -> Future[None]:
        """Be without an instance until the next frame comes. Conflict if the slot is in use, or keeps state."""
        done: Future[None] = Future()
        self._ask(lambda: self._sleep.begin(done))
        return done

    def wake(self) -> None:
        """Start an instance, if it sleeps."""
        self.post(self._sleep.wake)

    @property
    def asleep(self) -> bool:
        """Whether it is without an instance until the next frame comes."""
        return self._sleep.asleep

    def wakes(self) -> list[Wake]:
        """Ends of sleeps that were not fetched yet, oldest first."""
        found = []
        while self._sleep.wakes:
            found.append(self._sleep.wakes.popleft())
        return found

    def server_restarted(self, role: Role) -> None:
        """Handle the loss of a server. The queue server's log, answers and owner are gone: start over. The state server is as it was."""
        self.post(self._start_over if role == "queue" else self.disconnect)

    def stop(self, *, drop: bool, letters_to: SlotKeys | None = None) -> Future[None]:
        """Stop all instances; with `drop` also remove every key of the slot, but move dead letters to the slot `letters_to`, if given."""
        self.post(lambda: self._stop(drop, letters_to))
        return self._ended

    def wait_serving(self, timeout_s: float) -> Instance | None:
        """Wait until it serves; return the owner, or None while a crashed one is being replaced (its queue takes frames all the same).

        Raises the error with which the operator failed to load, or Unavailable after `timeout_s`.
        """
        try:
            return self._ownership.wait(timeout_s)
        finally:
            self.used_at = time.monotonic()

    def look(self) -> None:
        """Check the owner and the log now, not only when the next look is due."""
        self.post(self._look)

    def view(self) -> SlotView:
        """Its present state."""
        own, restarts = self._ownership, self._restarts
        owner, trouble, watch = own.owner, restarts.trouble, own.watch
        without = "failed" if own.error else "asleep" if self.asleep else "starting"
        state = trouble[0] if trouble else owner.life.state if owner else without
        next_try_s = None if owner else restarts.next_try_s
        last = trouble[1] if trouble else own.last_error
        if next_try_s is not None and next_try_s >= 1:
            last += f"; next try in {next_try_s:.0f} s"
        wanted, totals = own.wanted, dict(watch.totals)
        return SlotView(self.deployment, self.number, self.pinned, wanted, state, owner, restarts.count, last, watch.events_per_s, totals)

    def condition(self) -> tuple[str, str] | None:
        """Its condition for the registry: (answering, failing, broken or failed; why). None while it starts for the first time."""
        own, restarts = self._ownership, self._restarts
        if (trouble := restarts.trouble) is not None:
            return trouble[0], f"{trouble[1]}; restarts {restarts.count}, the last one after {restarts.pause_s:g} s"
        if (error := own.error) is not None:
            return "failed", str(error)
        return ("answering", "") if own.served else None

    @property
    def wanted(self) -> Wanted | None:
        """The version that the slot serves or tries to serve."""
        return self._ownership.wanted

    @property
    def updating(self) -> bool:
        """Whether another version is prepared, or is being prepared."""
        return self._loads.updating

    # -- the thread --------------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """Schedule the next look."""
        if self.due_s("look") is None:
            timeout_s = self.wanted.answer_timeout_s if self.wanted else _LOOK_MOST_S * 4
            look_s = max(_LOOK_LEAST_S, min(_LOOK_MOST_S, timeout_s / 4))
            self.at("look", _LOOK_LEAST_S if self._restarts.trouble else look_s, self._look)

    def _serve(self, wanted: Wanted) -> None:
        own = self._ownership
        if own.life.state == "stopping":
            return
        self._sleep.end()
        if own.owner is not None:
            if own.wanted != wanted:
                self._promotions.change_over(wanted)
        elif wanted != own.wanted or self._restarts.next_try_s is None:  # else it has just failed, and the next try is scheduled
            if wanted != own.wanted:
                self._loads.cancel()
            own.want(wanted)
            self._restarts.replace()

    def _adopt(self, owner: Instance, wanted: Wanted) -> None:
        self._ownership.adopt(owner, wanted)
        owner.listen(self._on_exit)

    def _loaded(self, load: Load, error: UdoError | None) -> None:
        instance = load.instance
        if error is None and instance is not None:
            try:
                self._take_over(load, instance)
                return
            except UdoError as e:  # a server was lost, or a newer owner came first
                self.disconnect()
                error = e
        assert error is not None, "a load without an instance has failed"
        if instance is not None:
            self._ownership.retire(instance, kill=isinstance(error, OperatorError))
        cancelled = load.cancelled.is_set()
        if load.update and isinstance(error, Fenced) and not cancelled:  # a fresh standby has a newer token
            self._loads.start(Load(load.wanted, update=True, follow=load.follow, serving=load.serving, done=load.done))
        elif load.update:
            load.done.set_exception(error)
        elif not cancelled:
            self._restarts.not_loaded(error)
        if not cancelled:
            self._ownership.last_error = str(error)
            self.log.error("operator did not become ready", operator=load.wanted.reference, update=load.update, error=str(error))

    def _take_over(self, load: Load, instance: Instance) -> None:
        self.node.instances.move(instance, "standby")
        if load.update:
            self._loads.standby = (instance, load.wanted)
        else:
            self._ownership.own(instance, load.wanted)
        instance.listen(self._on_exit)
        load.done.set_result(instance)

    def _on_exit(self, instance: Instance) -> None:
        """Called from a thread of the driver."""
        self.post(lambda: self._exited(instance))

    def _exited(self, instance: Instance) -> None:
        own, standby = self._ownership, self._loads.standby
        if instance is own.owner:
            self._sleep.end()  # the owner was promoted while the slot slept
            own.lost()
            own.count(instance)
            self._restarts.owner_died(instance, self._remove(instance))
        elif standby is not None and instance is standby[0]:
            self._loads.take_standby()
            log = self._remove(instance)
            own.last_error = f"the prepared instance of {instance.assigned.reference} died: {instance.exit}{log}"
            self.log.error("standby died", instance=instance.name, how=str(instance.exit))

    def _remove(self, instance: Instance) -> str:
        """Remove an instance that ended by itself; return the last lines of its log."""
        self.node.instances.move(instance, "failed")
        log = log_end(instance)
        self.beside(lambda: self.node.instances.remove(instance))
        return log

    def _start_over(self) -> None:
        self.disconnect()
        own, standby = self._ownership, self._loads.take_standby()
        self._loads.cancel()
        lost = [i for i in (own.owner, standby and standby[0]) if i]
        if own.owner is not None:
            own.lost()
        self._restarts.forget()
        self._sleep.end()
        for instance in lost:
            self.beside(lambda i=instance: self.node.instances.stop(i, 1.0))  # type: ignore[misc]
        self._restarts.count += bool(lost)
        if own.wanted is not None:
            self._loads.start(Load(own.wanted, update=False))

    def _look(self) -> None:
        """Check whether the owner still answers and whether a pinned version is still called; measure the rate of events."""
        own = self._ownership
        try:
            stats = slot.slot_stats(self.conn("queue"), self.keys)
            if stats.lanes:
                slot.close_abandoned(self.conn("queue"), self.keys)
        except SlotBroken as e:
            self._restarts.broken(e)
            return
        if stats.lanes or stats.depth_frames or own.waiting:
            self.used_at = time.monotonic()
        if self._on_idle and time.monotonic() - self.used_at > self.node.settings.pinned_idle_s:
            self._on_idle(self)
        if own.owner is None or own.wanted is None:
            own.watch.no_owner()
            if self.asleep:
                if stats.depth_frames:  # its bell was missed
                    self._sleep.wake()
                return
            if self._restarts.next_try_s is None:  # the step that should have scheduled it failed
                self._restarts.replace()
            return
        self._restarts.look(stats)
        able, timeout_s = not self.node.servers.trouble("state") and not self._awaits_replicas(stats), own.wanted.silence_s
        if own.watch.stuck_s(stats, own.owner_since or 0.0, able=able) > timeout_s:
            starts = " and two limits.open_timeout_s" if own.wanted.image.manifest.own_process else ""
            reason = f"killed: it did not answer a frame within {timeout_s:g} s (limits.answer_timeout_s{starts})"
            self._restarts.hangs(own.owner, reason)
        own.watch.rate(self.conn("queue"), own.owner)

    def _awaits_replicas(self, stats: slot.SlotStats) -> bool:
        """Whether a frame may wait for replicas to hold what it has ENDed, which is not the operator's fault."""
        return bool(self._ownership.keyed and stats.depth_frames and replication.lacking(self.conn("state"), self.keys)[1])

    def _stop(self, drop: bool, letters_to: SlotKeys | None) -> None:
        if self._ownership.life.state in ("stopping", "stopped"):  # already asked for
            return
        self._ownership.stop()
        self._restarts.stop()
        self._loads.cancel()
        self._loads.discard_update()
        # Cancelled loads notice that, and retire the instances they started.
        self.step_until(time.monotonic() + self.node.settings.stop_grace_s + 6, lambda: not self._loads.any)
        if drop:
            with contextlib.suppress(SlotBroken, ServerLost):
                if letters_to:
                    dead_letters.move(self.conn("state"), self.keys, letters_to)
            with contextlib.suppress(UdoError):
                slot.drop_slot(self.conn("state"), self.conn("queue"), self.keys)
            self.node.servers.dismiss_lanes(self.keys)
        self._ownership.life.move("stopped")
        self.end()
        self._ownership.tell()
        self._ended.set_result(None)
