"""Requested changes of a slot's owner: an update is prepared as a standby and promoted, or state is changed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from node_manager.instances.instances import Instance
from node_manager.slots import deaths
from node_manager.slots.loading import Load, Wanted
from node_manager.slots.loads import Loads
from node_manager.slots.ownership import Ownership
from node_manager.slots.restarts import Restarts
from node_manager.slots.thread import SlotThread
from udo_protocol.errors import Conflict, Fenced, SchemaError, UdoError
from udo_protocol.formats.manifest import call_misfits, update_refusals
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.state import rewinding, turns

StateWork = Callable[[Connection, Connection, int], None]


class Promotions:
    """The promotions of one slot. `done` gets the outcome of each."""

    def __init__(self, thread: SlotThread, ownership: Ownership, loads: Loads, restarts: Restarts) -> None:
        self._thread, self._ownership, self._loads, self._restarts = thread, ownership, loads, restarts

    def change_over(self, wanted: Wanted) -> None:
        """Prepare and promote the version, whether or not running queries can go on with it."""
        load = Load(wanted, update=True, follow=True)
        load.done.add_done_callback(lambda f: self._promote_after(f, Future()))
        self._prepare(load, check=False)

    def prepare(self, load: Load, *, check: bool) -> None:
        """Load it as a standby. SchemaError if `check` finds that running queries could not go on with it."""
        self._or_tell(load.done, lambda: self._prepare(load, check=check))

    def _or_tell(self, done: Future[Any], step: Callable[[], None]) -> None:
        """Take the step; if it fails, for example because a server has just been lost, `done` gets the error."""
        try:
            step()
        except UdoError as e:
            self._thread.disconnect()
            done.set_exception(e)

    def _prepare(self, load: Load, *, check: bool) -> None:
        serving = self._ownership.wanted
        new, old = load.wanted.image.manifest, serving.image.manifest if serving else None
        back = check and bool(new.key) and rewinding.possible(self._thread.conn("state"), self._thread.keys, load.wanted.image.digest)
        refusals = call_misfits if back else update_refusals
        if check and old and (why := refusals(old, new)):
            raise SchemaError(
                f"{new.reference} cannot replace {old.reference} under running queries: {'; '.join(why)}. Deploy it under another name."
            )
        self._loads.discard_update()
        load.serving = old.state_version if old else 0
        self._loads.start(load)

    def promote(self, done: Future[Instance]) -> None:
        """Make the standby the owner. Conflict if there is none."""
        if (standby := self._loads.take_standby()) is None:
            why, where = self._ownership.last_error or "prepare it first", f"node {self._thread.node.settings.node}"
            done.set_exception(Conflict(f"no update of {self._thread.deployment} is prepared on {where}; {why}"))
            return
        instance, wanted = standby
        try:
            self._loads.cancel(updates=False)  # the new version replaces a crashed owner too
            if wanted.image.manifest.key:
                turns.await_turn(self._thread.conn("queue"), self._thread.keys)
            self._ownership.own(instance, wanted)
        except Fenced:
            # The owner was replaced after a crash since the standby was prepared; a fresh one has a newer token.
            self._ownership.retire(instance)
            again = Load(wanted, update=True)
            again.done.add_done_callback(lambda f: self._promote_after(f, done))
            self._loads.start(again)
        except UdoError as e:
            self._thread.disconnect()
            self._ownership.retire(instance)
            self._restarts.later(deaths.RESTART_FIRST_S)
            done.set_exception(e)
        else:
            done.set_result(instance)

    def _promote_after(self, loaded: Future[Instance], done: Future[Instance]) -> None:
        if (error := loaded.exception()) is not None:
            done.set_exception(error)
        else:
            self._thread.post(lambda: self.promote(done))

    def change_state(self, work: StateWork, done: Future[None]) -> None:
        """See Slot.change_state."""
        self._or_tell(done, lambda: self._change_state(work, done))

    def _change_state(self, work: StateWork, done: Future[None]) -> None:
        if self._loads.updating:
            raise Conflict(f"an update of {self._thread.deployment} is under way; change its state when that is done")
        token = slot.next_token(self._thread.conn("state"), self._thread.keys)
        wanted = self._ownership.wanted
        if self._ownership.owner is None or wanted is None:  # an instance that is loading has an older token and is loaded again
            if self._work(work, token, done):
                done.set_result(None)
            return
        load = Load(wanted, update=True)
        load.done.add_done_callback(lambda loaded: self._thread.post(lambda: self._work_and_promote(loaded, work, token, done)))
        self._loads.start(load)

    def _work_and_promote(self, loaded: Future[Instance], work: StateWork, token: int, done: Future[None]) -> None:
        if (error := loaded.exception()) is not None:
            done.set_exception(error)
            return
        worked = self._work(work, token, done)
        promoted: Future[Instance] = Future()
        self.promote(promoted)

        def tell(future: Future[Instance]) -> None:
            if worked:
                error = future.exception()
                done.set_exception(error) if error else done.set_result(None)

        promoted.add_done_callback(tell)

    def _work(self, work: StateWork, token: int, done: Future[None]) -> bool:
        """Do the work while `token` owns the slot. False if that failed; `done` then has the error."""
        try:
            state, queue = self._thread.conn("state"), self._thread.conn("queue")
            slot.promote(state, queue, self._thread.keys, token)
            work(state, queue, token)
            return True
        except Fenced:
            done.set_exception(Conflict(f"the instance of {self._thread.deployment} was replaced meanwhile: nothing changed, try again"))
        except Exception as e:
            self._thread.disconnect()
            done.set_exception(e)
        return False
