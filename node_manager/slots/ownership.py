"""The owner of a slot, the status that callers see while there is none, and the slot's lifecycle."""

from __future__ import annotations

import contextlib
import time
from threading import Condition

from node_manager.instances.instances import Instance
from node_manager.slots import state_rollback
from node_manager.slots.lifecycle import SLOT
from node_manager.slots.loading import Wanted
from node_manager.slots.thread import SlotThread
from node_manager.slots.watching import SlotWatch
from udo_protocol.errors import PeerError, UdoError, Unavailable, by_code
from udo_protocol.lifecycle import INSTANCE, Lifecycle
from udo_protocol.queue import slot
from udo_protocol.state import rewinding

# Bookkeeping is deferred by this time after a promotion: the new owner's first answers need the processors.
_PROMOTED_PAUSE_S = 0.02


class Ownership:
    """The owner of one slot. `wait` may be called from any thread."""

    def __init__(self, thread: SlotThread) -> None:
        self._thread = thread
        self.life = Lifecycle(SLOT, "new", f"slot {thread.deployment}-{thread.number}")
        self.wanted: Wanted | None = None  # the version that it serves or tries to serve
        self.owner: Instance | None = None  # while it is serving
        self.owner_since: float | None = None  # of the last owner; None if there never was one
        self.error: UdoError | None = None  # the error with which it failed
        self.load_failures = 0  # in a row, of owners
        self.last_error = ""  # the latest error of any kind, for people
        self.watch = SlotWatch(thread.keys)
        self.waiting = 0  # number of waiting callers
        self._changed = Condition()
        self._status_stored = True  # assumed at first: the first promotion removes a status that a former manager left

    @property
    def served(self) -> bool:
        """Whether the slot ever had an owner."""
        return self.owner_since is not None

    @property
    def lived_s(self) -> float:
        """How long ago the last owner became the owner."""
        return time.monotonic() - (self.owner_since or 0.0)

    @property
    def keyed(self) -> bool:
        """Whether the served operator is keyed."""
        return self.wanted is not None and bool(self.wanted.image.manifest.key)

    def want(self, wanted: Wanted) -> None:
        """Set the version to load into the slot, which has no owner. Forget the failure of another version."""
        if wanted != self.wanted:
            self.wanted, self.error, self.load_failures = wanted, None, 0
            if self.life.state in ("new", "failed"):
                self.life.move("replacing" if self.served else "starting")

    def adopt(self, owner: Instance, wanted: Wanted) -> None:
        """Go on with the owner that a former manager left."""
        owner.life.state = "owner"
        self._serves(owner, wanted)
        self._thread.node.instances.save(owner)
        self.tell()
        self._watch_kept()

    def own(self, instance: Instance, wanted: Wanted) -> None:
        """Change the token, so that from here on this instance answers."""
        thread = self._thread
        state, queue = thread.conn("state"), thread.conn("queue")
        between = state_rollback.step(state, queue, thread.keys, instance, wanted, self.wanted, thread.node.settings.rollback_window_s)
        slot.promote(state, queue, thread.keys, instance.token, between)
        if self.owner is not None:
            time.sleep(_PROMOTED_PAUSE_S)
        former = self.owner
        self._serves(instance, wanted)
        thread.node.instances.move(instance, "owner")
        self.tell()
        if self._status_stored:
            slot.set_status(queue, thread.keys, None)
            self._status_stored = False
        thread.log.info("owner", operator=wanted.reference, instance=instance.name, token=instance.token)
        if former is not None:
            self.retire(former)
        self._watch_kept()

    def _serves(self, owner: Instance, wanted: Wanted) -> None:
        self.life.move("serving")
        self.owner, self.wanted, self.error, self.load_failures = owner, wanted, None, 0
        self.owner_since = time.monotonic()

    def lost(self) -> None:
        """Note that the owner is gone."""
        self.life.move("replacing")
        self.owner = None

    def fail(self, error: UdoError) -> None:
        """Note that no owner can be loaded: callers get the error until there is one."""
        self.life.move("failed")
        self.error, self._status_stored = error, True
        status = {"code": error.code, "message": str(error), "traceback": ""}
        slot.set_status(self._thread.conn("queue"), self._thread.keys, status)
        self.tell()

    def stop(self) -> None:
        """Retire the owner; no other one will be started."""
        self.life.move("stopping")
        owner, self.owner = self.owner, None
        if owner is not None:
            self.retire(owner)

    def retire(self, instance: Instance, *, kill: bool = False) -> None:
        """Stop a former owner in a thread of its own; with `kill` at once."""
        instances, grace_s = self._thread.node.instances, 0.0 if kill else self._thread.node.settings.stop_grace_s
        self.count(instance)
        if "leaving" in INSTANCE[instance.life.state]:
            instances.move(instance, "leaving")
        self._thread.beside(lambda: instances.stop(instance, grace_s))

    def count(self, instance: Instance) -> None:
        """Add the counters of an instance that ends to the totals."""
        with contextlib.suppress(PeerError):
            self.watch.count(self._thread.conn("queue"), instance)

    def _watch_kept(self) -> None:
        """Let the state that is kept for a rollback be given up in time."""
        thread = self._thread
        thread.forget("kept")
        if self.owner is not None and self.keyed:
            left_s = state_rollback.remaining_s(thread.conn("state"), thread.keys, self.owner)
            if left_s is not None:
                thread.at("kept", left_s, lambda: rewinding.forget(thread.conn("state"), thread.conn("queue"), thread.keys))

    def tell(self) -> None:
        """Wake the waiting callers."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> Instance | None:
        """See Slot.wait_serving."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self.waiting += 1
            try:
                while True:
                    if (error := self.error) is not None:
                        raise by_code(error.code, str(error))
                    if self.served:
                        return self.owner
                    where = f"node {self._thread.node.settings.node}"
                    if self._thread.stopped:
                        raise Unavailable(f"deployment {self._thread.deployment} is being removed from {where}")
                    if not self._changed.wait(deadline - time.monotonic()):
                        what = self.wanted.reference if self.wanted else self._thread.deployment
                        see = f"see: udo logs {self._thread.deployment}"
                        raise Unavailable(f"operator {what} is still starting on {where} after {timeout_s:g} s; {see}")
            finally:
                self.waiting -= 1
