"""One slot of a deployment: keeps an owner answering, replaces it when it dies or hangs, prepares and promotes updates.

All decisions are taken by the slot's own thread (worker.py), one step after the other; what takes time (loading, stopping) runs
beside it and reports back as a step. Idle, the thread sleeps until its next look at the queue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition
from typing import Any

from node_manager.instances.instances import Instance
from node_manager.servers.binaries import Role
from node_manager.slots import deaths, going_back, loading
from node_manager.slots.deaths import SETTLED_S, Deaths, backoff_s
from node_manager.slots.loading import Load, Node, Wanted, given_up, log_end
from node_manager.slots.watching import Watch
from node_manager.slots.worker import Worker
from udo_protocol.errors import (
    Conflict,
    Fenced,
    OperatorError,
    PeerError,
    SchemaError,
    ServerLost,
    SlotBroken,
    UdoError,
    Unavailable,
    by_code,
)
from udo_protocol.formats.manifest import call_misfits, update_refusals
from udo_protocol.lifecycle import INSTANCE
from udo_protocol.queue import keys, slot, slot_reader
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import Failure
from udo_protocol.state import anew, dead_letters, following, rewinding

# A load that fails so often in a row after the slot has served is no passing trouble: callers are told.
LOADS_BEFORE_STATUS = 3
_RELOAD_FIRST_S, _RELOAD_MOST_S = 1.0, 60.0
_LOOK_LEAST_S, _LOOK_MOST_S = 1.0, 5.0
# At a switch the processors are the new owner's: what is to be written and told about it comes behind its first answers.
_QUIET_S = 0.02

StateWork = Callable[[Connection, Connection, int], None]


@dataclass(frozen=True)
class View:
    """What a slot is doing now, for status, statistics and metrics."""

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


class Slot(Worker):
    """See the module. The methods up to `wanted` may be called from any thread."""

    kind = "slot"

    def __init__(self, node: Node, deployment: str, number: int, pinned: str = "", on_idle: Callable[[Slot], None] | None = None) -> None:
        super().__init__(f"{deployment}-{number}", node.servers, deployment=deployment, slot=number)
        self.node, self.deployment, self.number, self.pinned = node, deployment, number, pinned
        self.prefix = keys.prefix(deployment, number)
        self.used_at = time.monotonic()
        self._on_idle = on_idle
        self._changed = Condition()
        self._waiting = 0  # changed under it
        self._wanted: Wanted | None = None
        self._owner: Instance | None = None
        self._shadow: tuple[Instance, Wanted] | None = None
        self._loads: list[Load] = []
        self._error: UdoError | None = None  # why it does not serve
        self._has_status = True  # unknown at first: the first promotion removes one that a former manager left
        self._served = False
        self._last_error = ""
        self._last_log = ""
        self._restarts = self._load_failures = 0
        self._owner_since = 0.0
        self._deaths = Deaths()
        self._hung: Instance | None = None
        # What keeps it from answering while it is restarted again and again: ("failing" or "broken", how), for people.
        self._trouble: tuple[str, str] | None = None
        self._pause_s = 0.0  # before the last restart
        self._watch = Watch(self.prefix)
        self._stopping = False
        self.at("look", _LOOK_LEAST_S, self._look)
        self.start()

    # -- asked from outside ------------------------------------------------------------------------------------------

    def _ask(self, step: Callable[[], None]) -> None:
        if self.stopped:
            raise Unavailable(f"deployment {self.deployment} has been stopped on node {self.node.settings.node}")
        self.post(step)

    def serve(self, wanted: Wanted) -> None:
        """Start serving; a slot that already serves something else changes over as in an update."""
        self._ask(lambda: self._serve(wanted))

    def adopt(self, owner: Instance, wanted: Wanted) -> None:
        """Go on with the owner a former manager left."""
        self._ask(lambda: self._adopt(owner, wanted))

    def prepare(self, wanted: Wanted, *, check: bool = True) -> Future[Instance]:
        """Load `wanted` as a shadow. SchemaError if running queries could not go on with it, unless that was decided elsewhere."""
        load = Load(wanted, update=True, follow=True)
        self._ask(lambda: self._or_tell(load.done, lambda: self._prepare(load, check)))
        return load.done

    def promote(self) -> Future[Instance]:
        """Make the prepared shadow the owner. Conflict if there is none."""
        done: Future[Instance] = Future()
        self._ask(lambda: self._promote_shadow(done))
        return done

    def discard(self) -> None:
        """Give up a prepared update."""
        self._ask(self._discard)

    def change_state(self, work: StateWork) -> Future[None]:
        """Run `work(state, queue, token)` while `token`, and so no instance, owns the slot; done when a fresh owner serves.

        The owner has its sessions in memory, so it is replaced, as in an update to the same version: the next one is loaded
        first, and only `work` lies between the two. Conflict while an update is under way.
        """
        done: Future[None] = Future()
        self._ask(lambda: self._or_tell(done, lambda: self._change_state(work, done)))
        return done

    def server_restarted(self, role: Role) -> None:
        """The queue server was lost: its log, answers and owner are gone, and the instances with it. The state server is as it was."""
        self.post(self._start_over if role == "queue" else self.disconnect)

    def stop(self, *, drop: bool, letters_to: str = "") -> Future[None]:
        """Stop all instances; with `drop` remove every key of the slot too, except for dead letters that go to the slot `letters_to`."""
        done: Future[None] = Future()
        if self.stopped:
            done.set_result(None)
        else:
            self.post(lambda: self._stop(drop, letters_to, done))
        return done

    def wait_serving(self, timeout_s: float) -> Instance | None:
        """Until it serves: the owner, or None while a crashed one is being replaced (its queue takes frames all the same).

        Raises what the operator failed to load with, or Unavailable after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed, self._used():
            while True:
                if self._error is not None:
                    raise by_code(self._error.code, str(self._error))
                if self._owner is not None or self._served:
                    return self._owner
                if self.stopped:
                    raise Unavailable(f"deployment {self.deployment} is being removed from node {self.node.settings.node}")
                if not self._changed.wait(deadline - time.monotonic()):
                    what = self._wanted.reference if self._wanted else self.deployment
                    where = f"on node {self.node.settings.node} after {timeout_s:g} s"
                    raise Unavailable(f"operator {what} is still starting {where}; see: udo logs {self.deployment}")

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Somebody waits for it: it is not idle."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self.used_at = time.monotonic()

    def view(self) -> View:
        """What it is doing now."""
        owner, trouble = self._owner, self._trouble
        state = trouble[0] if trouble else owner.life.state if owner else "failed" if self._error else "starting"
        last = (trouble[1] if trouble else self._last_error) + self._next_try()
        return View(
            self.deployment,
            self.number,
            self.pinned,
            self._wanted,
            state,
            owner,
            self._restarts,
            last,
            self._watch.events_per_s,
            dict(self._watch.totals),
        )

    def _next_try(self) -> str:
        """When the next owner is started, if that is some time off."""
        timer = self._timers.get("replace")
        left_s = timer[0] - time.monotonic() if timer and self._owner is None else 0.0
        return f"; next try in {left_s:.0f} s" if left_s >= 1 else ""

    def condition(self) -> tuple[str, str] | None:
        """How it fares, as the registry is told: (answering, failing, broken or failed; why). None while it starts for the first time."""
        if (trouble := self._trouble) is not None:
            return trouble[0], f"{trouble[1]}; restarts {self._restarts}, the last one after {self._pause_s:g} s"
        if self._error is not None and self._owner is None:
            return "failed", str(self._error)
        return ("answering", "") if self._served else None

    @property
    def wanted(self) -> Wanted | None:
        """What it serves or tries to."""
        return self._wanted

    # -- the thread --------------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """It looks again before long."""
        if "look" not in self._timers:
            self.at("look", _LOOK_LEAST_S if self._trouble else self._look_s(), self._look)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- serving -----------------------------------------------------------------------------------------------------

    def _serve(self, wanted: Wanted) -> None:
        if self._owner is not None:
            if self._wanted == wanted:
                return
            load = Load(wanted, update=True, follow=True)
            load.done.add_done_callback(lambda f: self._promote_after(f, Future()))
            self._prepare(load, False)
            return
        if wanted == self._wanted and "replace" in self._timers:
            return  # it failed just now and is tried again in time
        if wanted != self._wanted:
            self._error, self._load_failures = None, 0
            self._cancel(lambda load: True)
        self._wanted = wanted
        self._replace()

    def _adopt(self, owner: Instance, wanted: Wanted) -> None:
        owner.life.state = "owner"
        self._owner, self._wanted, self._served, self._owner_since = owner, wanted, True, time.monotonic()
        self.node.instances.save(owner)
        self._tell()
        self._watch_kept()
        owner.listen(self._on_exit)

    def _replace(self) -> None:
        if self._wanted is not None and self._owner is None and not self._replacing():
            self.at("replace", deaths.RESTART_MOST_S, self._replace)  # if a server is lost in the next step
            self._mend()
            self._start(Load(self._wanted, update=False))
        self._timers.pop("replace", None)

    def _replacing(self) -> bool:
        return any(not load.update and not load.cancelled.is_set() for load in self._loads)

    def _start(self, load: Load) -> None:
        if self._stopping:
            load.done.set_exception(Unavailable(f"deployment {self.deployment} has been stopped on node {self.node.settings.node}"))
            return
        self._loads.append(load)
        self.beside(lambda: self._load(load))

    def _load(self, load: Load) -> None:
        """Beside the thread: an instance, its operator, its report."""
        error: UdoError | None = None
        try:
            loading.run(load, self.node, self.deployment, self.number)
        except UdoError as e:
            error = e
        except Exception as e:
            self._log.exception("load failed")
            error = OperatorError(f"{load.wanted.reference} could not be started on node {self.node.settings.node}: {e}")
        self.post(lambda: self._loaded(load, error))

    def _loaded(self, load: Load, error: UdoError | None) -> None:
        self._loads.remove(load)
        instance = load.instance
        if error is None and load.cancelled.is_set():
            error = given_up(load)
        if error is None and instance is not None:
            try:
                self._take_over(load, instance)
                return
            except UdoError as e:  # a server was lost, or a newer owner came first
                self.disconnect()
                error = e
        assert error is not None, "a load without an instance has failed"
        if instance is not None:
            self._retire(instance, kill=isinstance(error, OperatorError))
        if load.update and isinstance(error, Fenced) and not load.cancelled.is_set():  # a fresh shadow has a newer token
            self._start(Load(load.wanted, update=True, follow=load.follow, serving=load.serving, done=load.done))
        elif load.update:
            load.done.set_exception(error)
        elif not load.cancelled.is_set():
            self._not_loaded(error)
        if not load.cancelled.is_set():
            self._last_error = str(error)
            self._log.error("operator did not become ready", operator=load.wanted.reference, update=load.update, error=str(error))

    def _take_over(self, load: Load, instance: Instance) -> None:
        self.node.instances.move(instance, "shadow")
        if load.update:
            self._shadow = (instance, load.wanted)
        else:
            self._own(instance, load.wanted)
        instance.listen(self._on_exit)
        load.done.set_result(instance)

    def _not_loaded(self, error: UdoError) -> None:
        self._load_failures += 1
        lost = isinstance(error, (ServerLost, Fenced))
        passing = lost or (self._served and self._load_failures < LOADS_BEFORE_STATUS)
        most_s = _LOOK_MOST_S if lost else _RELOAD_MOST_S  # not the operator's fault: as soon as the server is back
        self.at("replace", backoff_s(self._load_failures, _RELOAD_FIRST_S, most_s), self._replace)
        if not passing:
            self._error = error
            self._has_status = True
            slot.set_status(self.conn("queue"), self.prefix, {"code": error.code, "message": str(error), "traceback": ""})
            self._tell()

    def _own(self, instance: Instance, wanted: Wanted) -> None:
        """Change the token: from here on this instance answers."""
        state, queue = self.conn("state"), self.conn("queue")
        between = going_back.step(state, queue, self.prefix, instance, wanted, self._wanted, self.node.settings.rollback_window_s)
        slot.promote(state, queue, self.prefix, instance.token, between)
        if self._owner is not None:
            time.sleep(_QUIET_S)
        former, self._owner = self._owner, instance
        self._wanted, self._served, self._error, self._load_failures = wanted, True, None, 0
        self._owner_since = time.monotonic()
        self.node.instances.move(instance, "owner")
        self._tell()
        if self._has_status:
            slot.set_status(self.conn("queue"), self.prefix, None)
            self._has_status = False
        self._log.info("owner", operator=wanted.reference, instance=instance.name, token=instance.token)
        if former is not None:
            self._retire(former)
        self._watch_kept()

    def _watch_kept(self) -> None:
        """What is kept for a rollback is given up in time."""
        self._timers.pop("kept", None)
        if self._owner is not None and self._wanted is not None and self._wanted.image.manifest.key:
            left = going_back.remaining_s(self.conn("state"), self.prefix, self._owner)
            if left is not None:
                self.at("kept", left, lambda: rewinding.forget(self.conn("state"), self.conn("queue"), self.prefix))

    def _retire(self, instance: Instance, *, kill: bool = False) -> None:
        """Let it finish and go, beside the thread."""
        self._count(instance)
        if "leaving" in INSTANCE[instance.life.state]:
            self.node.instances.move(instance, "leaving")
        grace_s = 0.0 if kill else self.node.settings.stop_grace_s
        self.beside(lambda: self.node.instances.stop(instance, grace_s))

    def _cancel(self, which: Callable[[Load], bool]) -> None:
        for load in self._loads:
            if which(load):
                load.cancelled.set()

    # -- updates -----------------------------------------------------------------------------------------------------

    def _or_tell(self, done: Future[Any], step: Callable[[], None]) -> None:
        """Who waits for `done` learns that the step could not be taken, as when a server has just been lost."""
        try:
            step()
        except UdoError as e:
            self.disconnect()
            done.set_exception(e)

    def _prepare(self, load: Load, check: bool) -> None:
        new, old = load.wanted.image.manifest, self._wanted.image.manifest if self._wanted else None
        back = check and bool(new.key) and rewinding.possible(self.conn("state"), self.prefix, load.wanted.image.digest)
        refusals = call_misfits if back else update_refusals
        if check and old and (why := refusals(old, new)):
            load.done.set_exception(
                SchemaError(
                    f"{new.reference} cannot replace {old.reference} under running queries: {'; '.join(why)}. Deploy it under another name."
                )
            )
            return
        self._discard()
        load.serving = old.state_version if old else 0
        self._start(load)

    def _discard(self) -> None:
        self._cancel(lambda load: load.update)
        if self._shadow is not None:
            shadow, self._shadow = self._shadow[0], None
            self._retire(shadow)

    def _promote_shadow(self, done: Future[Instance]) -> None:
        if self._shadow is None:
            why = self._last_error or "prepare it first"
            done.set_exception(Conflict(f"no update of {self.deployment} is prepared on node {self.node.settings.node}; {why}"))
            return
        instance, wanted = self._shadow
        self._shadow = None
        try:
            self._cancel(lambda load: not load.update)  # the new version replaces a crashed owner too
            if wanted.image.manifest.key:
                following.await_turn(self.conn("queue"), self.prefix)
            self._own(instance, wanted)
        except Fenced:
            # The owner was replaced after a crash since the shadow was prepared; a fresh shadow has a newer token.
            self._retire(instance)
            again = Load(wanted, update=True)
            again.done.add_done_callback(lambda f: self._promote_after(f, done))
            self._start(again)
            return
        except UdoError as e:
            self.disconnect()
            self._retire(instance)
            self.at("replace", deaths.RESTART_FIRST_S, self._replace)
            done.set_exception(e)
            return
        done.set_result(instance)

    def _promote_after(self, loaded: Future[Instance], done: Future[Instance]) -> None:
        if (error := loaded.exception()) is not None:
            done.set_exception(error)
        else:
            self.post(lambda: self._promote_shadow(done))

    # -- state changed from outside ----------------------------------------------------------------------------------

    def _change_state(self, work: StateWork, done: Future[None]) -> None:
        if self._shadow is not None or any(load.update for load in self._loads):
            done.set_exception(Conflict(f"an update of {self.deployment} is under way; change its state when that is done"))
            return
        token = slot.next_token(self.conn("state"), self.prefix)
        if self._owner is None or self._wanted is None:  # whoever is loading has an older token: it is loaded again
            self._own_for(work, token, done)
            if not done.done():
                done.set_result(None)
            return
        load = Load(self._wanted, update=True)
        load.done.add_done_callback(lambda loaded: self.post(lambda: self._change_over(loaded, work, token, done)))
        self._start(load)

    def _change_over(self, loaded: Future[Instance], work: StateWork, token: int, done: Future[None]) -> None:
        if (error := loaded.exception()) is not None:
            done.set_exception(error)
            return
        self._own_for(work, token, done)
        promoted: Future[Instance] = Future()
        self._promote_shadow(promoted)

        def tell(future: Future[Instance]) -> None:
            if not done.done():
                error = future.exception()
                done.set_exception(error) if error else done.set_result(None)

        promoted.add_done_callback(tell)

    def _own_for(self, work: StateWork, token: int, done: Future[None]) -> None:
        try:
            slot.promote(self.conn("state"), self.conn("queue"), self.prefix, token)
            work(self.conn("state"), self.conn("queue"), token)
        except Fenced:
            done.set_exception(Conflict(f"the instance of {self.deployment} was replaced meanwhile; nothing was changed, try again"))
        except Exception as e:
            self.disconnect()
            done.set_exception(e)

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _on_exit(self, instance: Instance) -> None:
        """From a thread of the driver."""
        self.post(lambda: self._exited(instance))

    def _exited(self, instance: Instance) -> None:
        if instance is self._owner:
            self._owner = None
            self._count(instance)
            self._end(instance)
            self._owner_died(instance)
        elif self._shadow and instance is self._shadow[0]:
            self._shadow = None
            self._last_error = f"the prepared instance of {instance.record['version']} died: {instance.exit}{log_end(instance)}"
            self._log.error("shadow died", instance=instance.name, how=str(instance.exit))
            self._end(instance)

    def _end(self, instance: Instance) -> None:
        self.node.instances.move(instance, "failed")
        text = log_end(instance)
        self.beside(lambda: self.node.instances.remove(instance))
        self._last_log = text

    def _owner_died(self, instance: Instance) -> None:
        self._restarts += 1
        self._last_error = f"instance {instance.name} of {_reference(instance)} died: {instance.exit}"
        self.at("replace", deaths.RESTART_MOST_S, self._replace)  # also if the server is lost in the next steps
        broken = self._mend()
        stats = slot.slot_stats(self.conn("queue"), self.prefix)
        hung, self._hung = instance is self._hung, None
        lived_s = time.monotonic() - self._owner_since
        verdict = self._deaths.died(
            emitted=stats.emitted, waiting_frames=stats.depth_frames, lived_s=lived_s, hung=hung, broke=broken is not None
        )
        in_a_row, delay_s = self._deaths.in_a_row, verdict.delay_s
        self._log.error("owner died", instance=instance.name, how=str(instance.exit), waiting_frames=stats.depth_frames, in_a_row=in_a_row)
        if verdict.fail_head:
            on_head = self._deaths.on_head
            try:
                how = f"{on_head} instances in a row died on this frame; the last one: " if on_head > 1 and not hung else ""
                if self._fail_head(instance, how):
                    delay_s = self._deaths.failed_head()
            except PeerError as e:  # its operator broke keys of the lane; another server is gone, and the next step sees that
                self.disconnect()
                self._log.error("the frame it died on could not be answered", error=str(e))
        self.at("replace", delay_s, self._replace)
        self._pause_s = delay_s
        if broken is None and self._deaths.failing:
            self._trouble = ("failing", f"{self._last_error}, {self._deaths}")

    def _mend(self) -> SlotBroken | None:
        """Begin the log anew if the operator broke it; nobody owns the slot now. Says what was wrong."""
        try:
            slot.slot_stats(self.conn("queue"), self.prefix)
            return None
        except SlotBroken as e:
            self._discard()
            keyed = self._wanted is not None and bool(self._wanted.image.manifest.key)
            anew.begin(self.conn("state"), self.conn("queue"), self.prefix, keyed=keyed)
            self._say_broken(e)
            return e

    def _say_broken(self, e: SlotBroken) -> None:
        if self._trouble != (trouble := ("broken", str(e))):
            self._trouble = trouble
            self._log.error("slot broken by its operator: its log begins anew", error=str(e))

    def _fail_head(self, instance: Instance, how: str) -> bool:
        reference = _reference(instance)
        message = f"operator {reference} on node {self.node.settings.node}: {how}{instance.exit}"
        failure = Failure(
            code=OperatorError.code, message=message, traceback=self._last_log.strip(), operator=reference, instance=instance.name
        )
        keyed = self._wanted is not None and bool(self._wanted.image.manifest.key)
        return slot_reader.fail_head(self.conn("state"), self.conn("queue"), self.prefix, failure, instance.record["version"], keyed=keyed)

    def _start_over(self) -> None:
        self.disconnect()
        self._cancel(lambda load: True)
        lost = [i for i in (self._owner, self._shadow and self._shadow[0]) if i]
        self._owner = self._shadow = None
        self._deaths.forget()
        self._trouble = None
        for instance in lost:
            self.beside(lambda i=instance: self.node.instances.stop(i, 1.0))  # type: ignore[misc]
        self._restarts += bool(lost)
        if self._wanted is not None:
            self._start(Load(self._wanted, update=False))

    # -- looking -----------------------------------------------------------------------------------------------------

    def _look_s(self) -> float:
        timeout_s = self._wanted.answer_timeout_s if self._wanted else _LOOK_MOST_S * 4
        return max(_LOOK_LEAST_S, min(_LOOK_MOST_S, timeout_s / 4))

    def _look(self) -> None:
        """Has the owner stopped answering? Has a pinned version nobody left to serve? How many events pass?"""
        owner, wanted = self._owner, self._wanted
        try:
            stats = slot.slot_stats(self.conn("queue"), self.prefix)
            if stats.lanes:
                slot.close_abandoned(self.conn("queue"), self.prefix)
        except SlotBroken as e:  # mended when nobody is left who could break it again
            self._say_broken(e)
            if owner is not None and owner.handle is not None:
                self.node.instances.driver.kill(owner.handle, f"killed: {e}")
            elif "replace" not in self._timers:
                self._replace()
            return
        if stats.lanes or stats.depth_frames or self._waiting:
            self.used_at = time.monotonic()
        if self._on_idle and time.monotonic() - self.used_at > self.node.settings.pinned_idle_s:
            self._on_idle(self)
        if owner is None or wanted is None:
            self._watch.no_owner()
            if "replace" not in self._timers:  # a step that should have seen to it failed
                self._replace()
            return
        lived_s = time.monotonic() - self._owner_since
        if self._deaths.answered(stats.emitted) or (not stats.depth_frames and lived_s > SETTLED_S):
            self._deaths.forget()
            self._trouble = None
        able = not self.node.servers.trouble("state")
        if self._watch.stuck_s(stats, self._owner_since, able=able) > wanted.answer_timeout_s and owner.handle is not None:
            self._hung = owner
            reason = f"killed: it did not answer a frame within {wanted.answer_timeout_s:g} s (limits.answer_timeout_s)"
            self.node.instances.driver.kill(owner.handle, reason)
        self._watch.rate(self.conn("queue"), owner)

    def _count(self, instance: Instance) -> None:
        with contextlib.suppress(PeerError):
            self._watch.count(self.conn("queue"), instance)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _stop(self, drop: bool, letters_to: str, done: Future[None]) -> None:
        self._stopping = True  # what is asked for from here on is not begun: nobody would end it
        self._timers.pop("replace", None)
        self._cancel(lambda load: True)
        self._discard()
        owner, self._owner = self._owner, None
        if owner is not None:
            self._retire(owner)
        # Loads see that they are cancelled and retire what they started.
        self.step_until(time.monotonic() + self.node.settings.stop_grace_s + 6, lambda: not self._loads)
        if drop:
            with contextlib.suppress(SlotBroken, ServerLost):
                if letters_to:
                    dead_letters.move(self.conn("state"), self.prefix, letters_to)
            with contextlib.suppress(UdoError):
                slot.drop_slot(self.conn("state"), self.conn("queue"), self.prefix)
        self.end()
        self._tell()
        done.set_result(None)


def _reference(instance: Instance) -> str:
    return f"{instance.record['operator']}@{instance.record['version']}"
