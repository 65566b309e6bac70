"""A thread with an inbox: takes all steps of one slot, one after the other, with timers and connections of its own.

Work that takes time runs in other threads and reports back as a step. While idle, the thread sleeps until its next timer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import structlog

from node_manager.servers.binaries import Role
from node_manager.servers.embedded import Servers
from udo_protocol import supervised
from udo_protocol.errors import ServerLost
from udo_protocol.queue.connection import Connection

_log = structlog.get_logger()
Step = Callable[[], None]


class SlotWorker:
    """See the module. The thread runs from `start` until a step calls `end`."""

    kind = "worker"

    def __init__(self, name: str, servers: Servers, **about: Any) -> None:
        self._servers, self._name = servers, name
        self.log = _log.bind(**about)
        self._inbox: SimpleQueue[Step] = SimpleQueue()
        self._timers: dict[str, tuple[float, Step]] = {}
        self._conns: dict[Role, Connection] = {}
        self._beside: set[Thread] = set()
        self._over = Event()

    @property
    def stopped(self) -> bool:
        """Whether it takes no more steps."""
        return self._over.is_set()

    def end(self) -> None:
        """End the thread after this step."""
        self._over.set()

    def start(self) -> None:
        """Start the thread; a timer is set by now, and there always is one from then on."""
        supervised.keep(self.kind, self._run, self._over, self._name)

    def _run(self) -> None:
        while not self.stopped:
            if not self._timers:  # the last step failed before it set one
                self.after_step()
            name, (when, step) = min(self._timers.items(), key=lambda timer: timer[1][0])
            try:
                step = self._inbox.get(timeout=max(0.0, when - time.monotonic()))
            except Empty:
                del self._timers[name]
            self._take(step)
            if not self.stopped:
                self.after_step()
        with contextlib.suppress(Empty):
            while True:  # callers that came meanwhile get the error
                self._take(self._inbox.get_nowait())
        self.disconnect()

    def _take(self, step: Step) -> None:
        try:
            step()
        except ServerLost as e:
            self.log.warning("server lost", error=str(e))
            self.disconnect()
        except Exception:
            supervised.failed(self.kind, self._name)
            self.disconnect()  # replies may still arrive

    def after_step(self) -> None:
        """Called after each step, however it ended."""

    def post(self, step: Step) -> None:
        """Append a step to the inbox. May be called from any thread."""
        self._inbox.put(step)

    def at(self, name: str, after_s: float, step: Step) -> None:
        """Take this step after that time; a timer of the same name is replaced."""
        self._timers[name] = (time.monotonic() + after_s, step)

    def due_s(self, name: str) -> float | None:
        """Seconds until that timer; None if there is none."""
        timer = self._timers.get(name)
        return timer and timer[0] - time.monotonic()

    def forget(self, name: str) -> None:
        """Remove that timer."""
        self._timers.pop(name, None)

    def beside(self, work: Step) -> None:
        """Run this in a thread of its own."""
        self._beside = {t for t in self._beside if t.is_alive()}
        self._beside.add(supervised.once("beside", work, self._name))

    def step_until(self, deadline: float, done: Callable[[], bool]) -> None:
        """Take steps from the inbox until `done`, at the latest until `deadline`; then wait for the work in other threads."""
        while not done() and time.monotonic() < deadline:
            with contextlib.suppress(Empty):
                self._take(self._inbox.get(timeout=0.1))
        for thread in list(self._beside):
            thread.join(max(0.0, deadline - time.monotonic()))

    def conn(self, role: Role) -> Connection:
        """This thread's connection to a server."""
        if role not in self._conns:
            self._conns[role] = self._servers.connect(role)
        return self._conns[role]

    def disconnect(self) -> None:
        """Close the connections; the next use connects anew."""
        for conn in self._conns.values():
            conn.close()
        self._conns.clear()
