"""Watches a slot's owner from outside: whether it still answers, and how many events pass."""

from __future__ import annotations

import contextlib
import time

from node_manager.instances.instances import Instance
from udo_protocol.clock import ObservedTime
from udo_protocol.errors import SlotBroken
from udo_protocol.queue import slot, untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import SlotStats

# A look that comes later than this was held up: a server hung, or the node manager stood still.
LOOK_MOST_S = 10.0
# The counters of instances; their sums over a slot's instances only grow.
COUNTED = ("events_in", "events_out", "frames", "errors", "busy_s", "dead_letters", "retries", slot.PROCESS_ENDS, *slot.TIMES)


class SlotWatch:
    """Watches one slot. `totals`: the counters of instances that have ended."""

    def __init__(self, keys: SlotKeys) -> None:
        self._keys = keys
        self.events_per_s = 0.0
        self.totals: dict[str, float] = {}
        self._head = (-1, 0.0)  # (frames emitted, time when the owner became the owner)
        self._stuck_s = 0.0
        self._laps = ObservedTime(LOOK_MOST_S)
        self._events: tuple[float, float] = (0.0, 0.0)  # (when, events so far)

    def no_owner(self) -> None:
        """Note that the slot has no owner now."""
        self._head = (-1, 0.0)

    def stuck_s(self, stats: SlotStats, owner_since: float, *, able: bool = True) -> float:
        """Seconds for which the frame that waits longest has been the next one of this owner; 0 if none waits.

        Time in which this process did not run does not count, and neither does time in which the owner was not `able` to answer.
        """
        lap_s = self._laps.lap()
        head = (stats.emitted, owner_since)
        if not stats.depth_frames or head != self._head:
            self._head, self._stuck_s = head, 0.0
        elif able:
            self._stuck_s += lap_s
        return self._stuck_s

    def rate(self, queue: Connection, owner: Instance) -> None:
        """Measure the events per second since the last look."""
        now = time.monotonic()
        events = self.now(queue, owner).get("events_in", 0.0) + self.totals.get("events_in", 0.0)
        self.events_per_s = max(0.0, events - self._events[1]) / max(now - self._events[0], 1e-3)
        self._events = (now, events)

    def count(self, queue: Connection, instance: Instance) -> None:
        """Keep the counts of an instance that leaves, so that the slot's counters only grow."""
        stats = self.now(queue, instance)
        for name in COUNTED:
            self.totals[name] = min(self.totals.get(name, 0.0) + stats.get(name, 0.0), untrusted.MOST)

    def failed(self) -> None:
        """Count a frame that was answered with an error in the place of an instance that died on it."""
        self.totals["errors"] = self.totals.get("errors", 0.0) + 1

    def now(self, queue: Connection, instance: Instance) -> dict[str, float]:
        """The counters of an instance; none if it has broken them, which `udo status` says."""
        with contextlib.suppress(SlotBroken):
            return slot.read_stats(queue, self._keys, instance.name)
        return {}
