"""The loads of a slot that are under way, and the standby that one of them has brought up for an update."""

from __future__ import annotations

from collections.abc import Callable

from node_manager.instances.instances import Instance
from node_manager.slots import loading
from node_manager.slots.loading import Load, Wanted
from node_manager.slots.ownership import Ownership
from node_manager.slots.thread import SlotThread
from udo_protocol.errors import OperatorError, UdoError


class Loads:
    """The loads of one slot. `loaded(load, error)` is called after each load."""

    def __init__(self, thread: SlotThread, ownership: Ownership, loaded: Callable[[Load, UdoError | None], None]) -> None:
        self._thread, self._ownership, self._loaded = thread, ownership, loaded
        self._under_way: list[Load] = []
        self.standby: tuple[Instance, Wanted] | None = None  # of an update, ready to be promoted

    def start(self, load: Load) -> None:
        """Start the load in a thread of its own; if the slot is being stopped, its `done` gets Unavailable."""
        if self._ownership.life.state == "stopping":
            load.done.set_exception(self._thread.has_been_stopped())
            return
        self._under_way.append(load)
        self._thread.beside(lambda: self._run(load))

    def _run(self, load: Load) -> None:
        thread, error = self._thread, None
        try:
            loading.run(load, thread.node, thread.deployment, thread.number)
        except UdoError as e:
            error = e
        except Exception as e:
            thread.log.exception("load failed")
            error = OperatorError(f"{load.wanted.reference} could not be started on node {thread.node.settings.node}: {e}")
        thread.post(lambda: self._ended(load, error))

    def _ended(self, load: Load, error: UdoError | None) -> None:
        self._under_way.remove(load)
        self._loaded(load, loading.given_up(load) if error is None and load.cancelled.is_set() else error)

    @property
    def any(self) -> bool:
        """Whether any load is under way, even a cancelled one."""
        return bool(self._under_way)

    @property
    def owner_loading(self) -> bool:
        """Whether an owner is being loaded."""
        return any(not load.update and not load.cancelled.is_set() for load in self._under_way)

    @property
    def updating(self) -> bool:
        """Whether an update is in progress."""
        return self.standby is not None or any(load.update for load in self._under_way)

    def cancel(self, *, owners: bool = True, updates: bool = True) -> None:
        """Cancel the loads of owners, those of updates' standbys, or both."""
        for load in self._under_way:
            if updates if load.update else owners:
                load.cancelled.set()

    def discard_update(self) -> None:
        """Give up an update that is being prepared, or is prepared."""
        self.cancel(owners=False)
        if (standby := self.take_standby()) is not None:
            self._ownership.retire(standby[0])

    def take_standby(self) -> tuple[Instance, Wanted] | None:
        """Take the standby out; there is none afterwards."""
        standby, self.standby = self.standby, None
        return standby
