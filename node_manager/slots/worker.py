"""A thread with an inbox: takes all steps of one slot, one after the other, with timers and connections of its own.

Work that takes time runs in other threads and reports back as a step. While idle, the thread sleeps until its next timer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
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
        self._conns: dict[Role, Connection] = {}
        self._beside: set[Thread] = set()
        self._over = Event()
        self._last, self._closed = Lock(), False  # guards the inbox against a step behind the last one that is taken

    @property
    def stopped(self) -> bool:
        """Whether it takes no more steps."""
        return self._over.is_set()

    def end(self) -> None:
        """End the thread after this step."""
        self._over.set()

    def start(self) -> None:
        """Start the thread."""
        supervised.keep(self.kind, self._run, self._over, self._name)

    def next_timer(self) -> tuple[float, Step]:
        """When (time.monotonic) the next timer is due, and the step to take then. Asked before each step."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.stopped:
            when, step = self.next_timer()
            with contextlib.suppress(Empty):
                step = self._inbox.get(timeout=max(0.0, when - time.monotonic()))
            self._take(step)
        while not self._closed:  # callers that came meanwhile get the error
            with self._last:
                self._closed = self._inbox.empty()
            if not self._closed:
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

    def post(self, step: Step) -> bool:
        """Append a step to the inbox; False if the thread has ended, and no longer takes it. May be called from any thread."""
        with self._last:
            if not self._closed:
                self._inbox.put(step)
            return not self._closed

    def beside(self, work: Step) -> None:
        """Run this in a thread of its own."""
        self._beside = {t for t in self._beside if t.is_alive()}
        self._beside.add(supervised.once("beside", work, self._name))

    def join(self, within_s: float) -> None:
        """Wait, up to that time, for the work in other threads."""
        deadline = time.monotonic() + within_s
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
