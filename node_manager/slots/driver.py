"""The thread of a slot: the engine decides about one event after the other, and the effects are performed here or in other threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition
from typing import Any
from weakref import WeakKeyDictionary

from node_manager.instances.instances import Instance
from node_manager.slots import effects as do
from node_manager.slots import engine, loading, state_rollback
from node_manager.slots import events as on
from node_manager.slots.loading import Load, NodeParts, log_end
from node_manager.slots.sleep import Doorbell
from node_manager.slots.state import SlotState
from node_manager.slots.watching import SlotWatch
from node_manager.slots.worker import SlotWorker, Step
from udo_protocol.errors import OperatorError, PeerError, ServerLost, SlotBroken, UdoError
from udo_protocol.lifecycle import INSTANCE
from udo_protocol.queue import slot, slot_reader
from udo_protocol.queue.frame import Failure
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import SlotStats
from udo_protocol.state import anew, dead_letters, replication, rewinding, turns

# Bookkeeping is deferred by this time after a promotion: the new owner's first answers need the processors.
_PROMOTED_PAUSE_S = 0.02


class SlotDriver(SlotWorker):
    """See the module. `on_idle` is called at each look when the slot has not been used for long."""

    kind = "slot"

    def __init__(self, node: NodeParts, deployment: str, number: int, on_idle: Callable[[], None] | None) -> None:
        super().__init__(f"{deployment}-{number}", node.servers, deployment=deployment, slot=number)
        self.node, self.deployment, self.number = node, deployment, number
        self.keys = SlotKeys(deployment, number)
        self.used_at = time.monotonic()
        self._state, self._on_idle = SlotState(deployment, number, node.settings.node), on_idle
        self._watch, self._bell = SlotWatch(self.keys), Doorbell(self, node.servers, self.keys)
        self._asked: dict[on.SlotRequest, Future[Any]] = {}
        self._loading: WeakKeyDictionary[on.SlotLoad, Load] = WeakKeyDictionary()  # as long as a load is under way
        self._waiting = 0  # number of callers that wait for a change of the state
        self._changed = Condition()
        self._ended: Future[bool] = Future()
        self._does: dict[type[do.SlotEffect], Callable[[Any], Any]] = {
            do.Tell: self._tell,
            do.Report: lambda e: getattr(self.log, e.level)(e.what, **e.about),
            do.StartLoad: self._start_load,
            do.CancelLoad: lambda e: self._loading[e.load].cancelled.set(),
            do.Attend: self._attend,
            do.PassOwnership: self._pass_ownership,
            do.AnnounceOwner: self._announce,
            do.Retire: self._retire,
            do.Remove: self._remove,
            do.Kill: self._kill,
            do.ReadStats: self._stats,
            do.WatchOwner: self._watch_owner,
            do.SetStatus: self._set_status,
            do.FailHead: self._fail_head,
            do.BeginLogAnew: lambda e: anew.begin(self.conn("state"), self.conn("queue"), self.keys, keyed=e.keyed),
            do.NextToken: lambda _: slot.next_token(self.conn("state"), self.keys),
            do.ChangeState: self._change_state,
            do.AwaitTurn: lambda _: turns.await_turn(self.conn("queue"), self.keys),
            do.CanGoBack: lambda e: rewinding.possible(self.conn("state"), self.keys, e.digest),
            do.KeptFor: lambda e: state_rollback.remaining_s(self.conn("state"), self.keys, e.owner),
            do.ForgetKept: lambda _: rewinding.forget(self.conn("state"), self.conn("queue"), self.keys),
            do.Listen: self._listen,
            do.Finish: self._finish,
        }

    def next_timer(self) -> tuple[float, Step]:
        """The earliest of the engine's timers; there is always one."""
        self._state.now = time.monotonic()
        engine.plan(self._state)
        name, when = min(self._state.timers.items(), key=lambda timer: timer[1])
        return when, lambda: self._decide(on.TimerDue(name))

    def _event(self, event: on.SlotEvent) -> bool:
        """Let the slot's thread decide about it; False if that has ended. May be called from any thread."""
        return self.post(lambda: self._decide(event))

    def _decide(self, event: on.SlotEvent) -> None:
        self._state.now = time.monotonic()
        steps = engine.decide(self._state, event)
        try:
            effect = next(steps)
            while True:
                try:
                    result = self._does[type(effect)](effect)
                except Exception as e:
                    self.disconnect()  # replies may still arrive
                    self._state.now = time.monotonic()
                    effect = steps.throw(e)
                else:
                    self._state.now = time.monotonic()
                    effect = steps.send(result)
        except StopIteration:
            pass
        finally:
            with self._changed:
                self._changed.notify_all()

    def _tell(self, effect: do.Tell) -> None:
        if effect.request is not None:
            done = self._asked.pop(effect.request)
            done.set_exception(effect.error) if effect.error else done.set_result(effect.instance)

    # -- instances ---------------------------------------------------------------------------------------------------

    def _start_load(self, effect: do.StartLoad) -> None:
        asked = effect.load
        load = self._loading[asked] = Load(asked.wanted, follow=asked.follow, serving=asked.serving)
        self.beside(lambda: self._load(asked, load))

    def _load(self, asked: on.SlotLoad, load: Load) -> None:
        error: UdoError | None = None
        try:
            loading.run(load, self.node, self.deployment, self.number)
        except UdoError as e:
            error = e
        except Exception as e:
            self.log.exception("load failed")
            error = OperatorError(f"{load.wanted.reference} could not be started on node {self.node.settings.node}: {e}")
        if not self._event(on.LoadEnded(asked, load.instance, error)) and load.instance is not None:
            self.node.instances.stop(load.instance, 0.0)  # the slot was stopped without waiting for it any longer

    def _attend(self, effect: do.Attend) -> None:
        instance = effect.instance
        if effect.adopted:
            instance.life.state = "owner"
            self.node.instances.save(instance)
        else:
            self.node.instances.move(instance, "standby")
        instance.listen(lambda instance: self._event(on.InstanceExited(instance)))

    def _pass_ownership(self, effect: do.PassOwnership) -> None:
        state, queue, instance, window_s = self.conn("state"), self.conn("queue"), effect.instance, self.node.settings.rollback_window_s
        between = state_rollback.step(state, queue, self.keys, instance, effect.wanted, effect.former, window_s)
        slot.promote(state, queue, self.keys, instance.token, between)
        if effect.live:
            time.sleep(_PROMOTED_PAUSE_S)

    def _announce(self, effect: do.AnnounceOwner) -> None:
        owner = effect.owner
        self.node.instances.move(owner, "owner")
        if effect.clear_status:
            slot.set_status(self.conn("queue"), self.keys, None)
        self.log.info("owner", operator=owner.assigned.reference, instance=owner.name, token=owner.token)

    def _retire(self, effect: do.Retire) -> None:
        instance, grace_s = effect.instance, {"replaced": self.node.settings.stop_grace_s, "useless": 0.0, "server lost": 1.0}[effect.why]
        if effect.why != "server lost":
            self._count(instance)
            if "leaving" in INSTANCE[instance.life.state]:
                self.node.instances.move(instance, "leaving")
        self.beside(lambda: self.node.instances.stop(instance, grace_s))

    def _remove(self, effect: do.Remove) -> str:
        if effect.owned:
            self._count(effect.instance)
        self.node.instances.move(effect.instance, "failed")
        log = log_end(effect.instance)
        self.beside(lambda: self.node.instances.remove(effect.instance))
        return log

    def _kill(self, effect: do.Kill) -> None:
        if effect.instance.handle is not None:
            self.node.instances.driver.kill(effect.instance.handle, effect.reason)

    def _count(self, instance: Instance) -> None:
        """Add the counters of an instance that ends to the totals."""
        try:
            self._watch.count(self.conn("queue"), instance)
        except PeerError:
            self.disconnect()

    # -- the log and the state ---------------------------------------------------------------------------------------

    def _stats(self, effect: do.ReadStats) -> SlotStats:
        queue = self.conn("queue")
        stats = slot.slot_stats(queue, self.keys)
        if effect.look:
            if stats.lanes:
                slot.close_abandoned(queue, self.keys)
            if stats.lanes or stats.depth_frames or self._waiting:
                self.used_at = time.monotonic()
            if self._on_idle and time.monotonic() - self.used_at > self.node.settings.pinned_idle_s:
                self._on_idle()
            if self._state.owner is None:
                self._watch.no_owner()
        return stats

    def _watch_owner(self, effect: do.WatchOwner) -> float:
        able, keyed, stats = not self.node.servers.trouble("state"), effect.keyed, effect.stats
        if able and keyed and stats.depth_frames:  # a frame may wait for replicas to hold what it has ENDed: not the operator's fault
            able = not replication.lacking(self.conn("state"), self.keys)[1]
        stuck_s = self._watch.stuck_s(stats, effect.since, able=able)
        self._watch.rate(self.conn("queue"), effect.owner)
        return stuck_s

    def _set_status(self, effect: do.SetStatus) -> None:
        status = {"code": effect.error.code, "message": str(effect.error), "traceback": ""}
        slot.set_status(self.conn("queue"), self.keys, status)

    def _fail_head(self, effect: do.FailHead) -> bool:
        record, state, queue = effect.instance.assigned, self.conn("state"), self.conn("queue")
        message = f"operator {record.reference} on node {self.node.settings.node}: {effect.how}"
        log, name = effect.log.strip(), effect.instance.name
        failure = Failure(code=OperatorError.code, message=message, traceback=log, operator=record.reference, instance=name)
        failed = slot_reader.fail_head(state, queue, self.keys, failure, record.version, keyed=effect.keyed)
        if failed:
            self._watch.failed()
        return failed

    def _change_state(self, effect: do.ChangeState) -> None:
        state, queue = self.conn("state"), self.conn("queue")
        slot.promote(state, queue, self.keys, effect.token)
        effect.work(state, queue, effect.token)

    def _listen(self, effect: do.Listen) -> None:
        s = self._state
        sleeps = lambda: s.asleep and s.sleeps == effect.sleep and s.life.state == "replacing"  # noqa: E731
        self.beside(lambda: self._bell.listen(effect.emitted, sleeps, lambda: self._event(on.WakeAsked())))

    def _finish(self, effect: do.Finish) -> None:
        self.join(effect.within_s)
        dropped = False
        try:
            if effect.drop:
                with contextlib.suppress(SlotBroken, ServerLost):
                    if effect.letters_to:
                        dead_letters.move(self.conn("state"), self.keys, effect.letters_to)
                with contextlib.suppress(UdoError):
                    slot.drop_slot(self.conn("state"), self.conn("queue"), self.keys)
                    dropped = True
                self.node.servers.dismiss_lanes(self.keys)
        finally:
            self.end()
            self._ended.set_result(dropped)
