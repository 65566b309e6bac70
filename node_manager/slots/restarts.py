"""How a slot gets its next owner when it has none: after a death, a load that failed, or a log that its operator broke."""

from __future__ import annotations

from node_manager.instances.instances import Instance
from node_manager.slots import deaths
from node_manager.slots.deaths import SETTLED_S, Deaths, backoff_s
from node_manager.slots.loading import Load
from node_manager.slots.loads import Loads
from node_manager.slots.ownership import Ownership
from node_manager.slots.thread import SlotThread
from udo_protocol.errors import Fenced, OperatorError, PeerError, ServerLost, SlotBroken, UdoError
from udo_protocol.queue import slot, slot_reader
from udo_protocol.queue.frame import Failure
from udo_protocol.queue.slot import SlotStats
from udo_protocol.state import anew

# Once a slot has served, this many failed loads in a row look permanent: callers get the error.
LOADS_BEFORE_STATUS = 3
_RELOAD_FIRST_S, _RELOAD_MOST_S = 1.0, 60.0
# The longest pause between loads that fail because a server is away: it may be back soon.
_SERVER_BACK_S = 5.0
_TIMER = "replace"


class Restarts:
    """The restarts of one slot."""

    def __init__(self, thread: SlotThread, ownership: Ownership, loads: Loads) -> None:
        self._thread, self._ownership, self._loads = thread, ownership, loads
        self.count = 0
        self.pause_s = 0.0  # before the last restart
        # Why it does not answer while it is restarted again and again: ("failing" or "broken", how), for people.
        self.trouble: tuple[str, str] | None = None
        self._deaths = Deaths()
        self._hung: Instance | None = None

    def replace(self) -> None:
        """Load an owner, unless there is one or one is being loaded."""
        if self._ownership.wanted is not None and self._ownership.owner is None and not self._loads.owner_loading:
            self.later(deaths.RESTART_MOST_S)  # if a server is lost in the next step
            self._mend()
            self._loads.start(Load(self._ownership.wanted, update=False))
        self._thread.forget(_TIMER)

    def later(self, after_s: float) -> None:
        """Replace the owner after that time."""
        self._thread.at(_TIMER, after_s, self.replace)

    def stop(self) -> None:
        """Start no further owner."""
        self._thread.forget(_TIMER)

    @property
    def next_try_s(self) -> float | None:
        """Seconds until the next owner is started; None if that is not planned."""
        return self._thread.due_s(_TIMER)

    def not_loaded(self, error: UdoError) -> None:
        """Try again after an owner failed to load, and report the error to callers once it looks permanent."""
        self._ownership.load_failures += 1
        failures, lost = self._ownership.load_failures, isinstance(error, (ServerLost, Fenced))
        most_s = _SERVER_BACK_S if lost else _RELOAD_MOST_S  # not the operator's fault: try again soon after the server is back
        self.later(backoff_s(failures, _RELOAD_FIRST_S, most_s))
        if not lost and (not self._ownership.served or failures >= LOADS_BEFORE_STATUS):
            self._ownership.fail(error)

    def owner_died(self, instance: Instance, log: str) -> None:
        """Start the next owner, now or after a pause; a frame that owners keep dying on is answered with an error before that."""
        self.count += 1
        last_error = self._ownership.last_error = f"instance {instance.name} of {instance.assigned.reference} died: {instance.exit}"
        self.later(deaths.RESTART_MOST_S)  # also if the server is lost in the next steps
        broken = self._mend()
        stats = slot.slot_stats(self._thread.conn("queue"), self._thread.keys)
        hung, self._hung = instance is self._hung, None
        verdict = self._deaths.died(
            emitted=stats.emitted, waiting_frames=stats.depth_frames, lived_s=self._ownership.lived_s, hung=hung, broke=broken is not None
        )
        in_a_row, delay_s = self._deaths.in_a_row, verdict.delay_s
        how = str(instance.exit)
        self._thread.log.error("owner died", instance=instance.name, how=how, waiting_frames=stats.depth_frames, in_a_row=in_a_row)
        if verdict.fail_head:
            on_head = self._deaths.on_head
            try:
                in_vain = f"{on_head} instances in a row died on this frame; the last one: " if on_head > 1 and not hung else ""
                if self._fail_head(instance, in_vain + how, log):
                    self._ownership.watch.failed()
                    delay_s = self._deaths.failed_head()
            except PeerError as e:  # the operator broke keys of the lane; or a server is gone, which the next step sees
                self._thread.disconnect()
                self._thread.log.error("the frame it died on could not be answered", error=str(e))
        self.later(delay_s)
        self.pause_s = delay_s
        if broken is None and self._deaths.failing:
            self.trouble = ("failing", f"{last_error}, {self._deaths}")

    def _fail_head(self, instance: Instance, how: str, log: str) -> bool:
        thread, reference = self._thread, instance.assigned.reference
        message = f"operator {reference} on node {thread.node.settings.node}: {how}"
        failure = Failure(code=OperatorError.code, message=message, traceback=log.strip(), operator=reference, instance=instance.name)
        state, queue, keyed = thread.conn("state"), thread.conn("queue"), self._ownership.keyed
        return slot_reader.fail_head(state, queue, thread.keys, failure, instance.assigned.version, keyed=keyed)

    def _mend(self) -> SlotBroken | None:
        """Start a new log if the operator corrupted the old one; the slot has no owner now. Return the damage."""
        thread = self._thread
        try:
            slot.slot_stats(thread.conn("queue"), thread.keys)
            return None
        except SlotBroken as e:
            self._loads.discard_update()
            anew.begin(thread.conn("state"), thread.conn("queue"), thread.keys, keyed=self._ownership.keyed)
            self._say_broken(e)
            return e

    def broken(self, e: SlotBroken) -> None:
        """Handle a broken log: it is repaired once no instance is left that could corrupt it again."""
        self._say_broken(e)
        if (owner := self._ownership.owner) is not None:
            self._kill(owner, f"killed: {e}")
        elif self.next_try_s is None:
            self.replace()

    def _say_broken(self, e: SlotBroken) -> None:
        if self.trouble != (trouble := ("broken", str(e))):
            self.trouble = trouble
            self._thread.log.error("the operator corrupted the slot's log; starting a new log", error=str(e))

    def _kill(self, instance: Instance, reason: str) -> None:
        if instance.handle is not None:
            self._thread.node.instances.driver.kill(instance.handle, reason)

    def hangs(self, owner: Instance, reason: str) -> None:
        """Kill an owner that hangs; the frame at the head is to blame."""
        self._hung = owner
        self._kill(owner, reason)

    def look(self, stats: SlotStats) -> None:
        """End a row of deaths if the owner answers, or has lived with nothing to answer."""
        if self._deaths.answered(stats.emitted) or (not stats.depth_frames and self._ownership.lived_s > SETTLED_S):
            self.forget()

    def forget(self) -> None:
        """Forget former deaths, which say nothing about the present owner or log."""
        self._deaths.forget()
        self.trouble = None
