"""An instance's counters, published on the queue server about once a second while it works."""

from __future__ import annotations

import time

from udo_protocol.limits import MESSAGE_CHARS
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.slot import GROUP_EVENTS, PROCESS_END, PROCESS_ENDS, PROCESS_PID
from udo_runtime.counters import Counters, ProcessLife

_EVERY_S = 1.0
_EXPIRES_MS = 3_600_000


class Stats:
    """Publishes an instance's counters under `key`."""

    def __init__(self, key: str, counters: Counters) -> None:
        self._key, self._counters = key, counters
        self._due = 0.0
        self._published: tuple[object, ...] = ()

    def publish(self, conn: Connection, *, now: float | None = None, force: bool = False) -> None:
        """Write the counters if they are due and have changed; `conn` must have no outstanding replies."""
        now = time.monotonic() if now is None else now
        counted = (self._counters.frames + self._counters.errors, self._counters.process)
        if counted == self._published or (now < self._due and not force):
            return
        self._due, self._published = now + _EVERY_S, counted
        flat: list[str | bytes] = [str(x) for pair in self._counters.values().items() for x in pair]
        if groups := self._counters.groups():
            flat += [GROUP_EVENTS, groups]
        if (own := self._counters.process) != ProcessLife():
            flat += [PROCESS_ENDS, str(own.ends), PROCESS_PID, str(own.pid), PROCESS_END, own.last_end[:MESSAGE_CHARS]]
        conn.transaction([("HSET", self._key, *flat), ("PEXPIRE", self._key, _EXPIRES_MS)])
