"""Reading ahead of a move: the owner of the slot that gets key groups reads their stored state while they are served elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from node_manager.slots.loading import LOAD_STATE_S, NodeParts
from node_manager.slots.slot import Slot
from udo_protocol.queue import access
from udo_protocol.queue import slot as log
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import moving

# Waits in proportion to the size of the state: look after 0.5, 1, 1.5 ... 20 ms.
LOOK_INCREMENT_US, LOOK_CEILING_US = 500, 20_000
# Bound on the last look ahead; then the groups move all the same.
LAST_LOOK_S = 1.0
# Reading ahead takes as long as loading an update's state; then the groups move all the same, and the rest is read at the end.
AHEAD_S = LOAD_STATE_S


class Interrupted(Exception):
    """The manager stops, or the deployment is gone."""


class OwnerReads:
    """Lets the owner of a slot read ahead what a move by that version of the group map is going to bring it; a new owner begins again.

    rules: its rights on the state server meanwhile; ask: asks it, by a frame in its log.
    """

    def __init__(self, node: NodeParts, slot: Slot, version: int, rules: Sequence[str], ask: Callable[[], object]) -> None:
        self._node, self._slot, self._version, self._rules, self._ask = node, slot, version, rules, ask
        self._told = ""

    def within(self, state: Connection, seconds: float, gone: Callable[[], bool]) -> bool:
        """Wait until the owner has read what there is; return whether that was within `seconds`. Interrupted once `gone`."""

        def has_read() -> bool:
            owner = self._slot.view().owner
            if owner is not None and owner.name != self._told:
                self._allow(owner.name, self._rules)
                self._ask()
                self._told = owner.name
            return moving.is_prepared(state, self._slot.keys, self._version)

        return waited(seconds, has_read, gone)

    def again(self, state: Connection, seconds: float, gone: Callable[[], bool]) -> bool:
        """Let it read what has come since, and wait as before."""
        moving.not_prepared(state, self._slot.keys, self._version)
        if self._told:
            self._ask()
        return self.within(state, seconds, gone)

    def end(self) -> None:
        """Give it its usual rights again."""
        if self._told:
            self._allow(self._told, access.state(self._slot.keys))

    def _allow(self, instance: str, rules: Sequence[str]) -> None:
        with contextlib.suppress(LookupError):  # it has just gone
            self._node.servers.widen("state", instance, rules)


def checkpoint_before_cut(
    queue: Connection, source: SlotKeys, version: int, gone: Callable[[], bool], ceiling_us: int = LOOK_CEILING_US
) -> None:
    """Let the source's owner make a checkpoint, so that little is left to be written at the cut; wait for it for LAST_LOOK_S."""
    at = moving.prepare_source(queue, source, version)
    waited(LAST_LOOK_S, lambda: log.slot_stats(queue, source).base > at, gone, ceiling_us)


def waited(seconds: float, done: Callable[[], bool], gone: Callable[[], bool], ceiling_us: int = LOOK_CEILING_US) -> bool:
    """Wait until `done`, looking every `ceiling_us` at the latest; return whether that was within `seconds`. Interrupted once `gone`."""
    backoff, deadline = LinearBackoff(LOOK_INCREMENT_US, ceiling_us), time.monotonic() + seconds
    while not (over := done()) and time.monotonic() < deadline:
        if gone():
            raise Interrupted
        backoff.pause()
    return over
