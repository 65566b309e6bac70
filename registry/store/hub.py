"""Wakes long polls and streams the moment something is committed, in this process or another one of the same database. No I/O; does not
know what has changed."""

from __future__ import annotations

import threading

from udo_protocol.errors import Unavailable


class Hub:
    """A counter of commits and the wanted-state generation, with one condition for all waiting requests."""

    def __init__(self, waiters: int) -> None:
        self._changed = threading.Condition()
        self._places = waiters
        self.waiting = 0
        self.commits = 0
        self.generation = 0
        self.stopping = threading.Event()

    def publish(self, generation: int | None) -> None:
        """Note a commit; `generation` is given if the wanted state of nodes has changed. News of an older one may come late."""
        with self._changed:
            self.commits += 1
            self.generation = max(self.generation, generation or 0)
            self._changed.notify_all()

    def close(self) -> None:
        """Release all waiting requests: the server is stopping."""
        with self._changed:
            self.stopping.set()
            self._changed.notify_all()

    def wait_commit(self, seen: int, timeout_s: float) -> bool:
        """Return at the first commit after the one numbered `seen`, or when stopping; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.commits != seen or self.stopping.is_set(), timeout_s)

    def wait_generation(self, seen: int, timeout_s: float) -> bool:
        """Return when the generation differs from `seen`, or when stopping; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.generation != seen or self.stopping.is_set(), timeout_s)

    def enter(self) -> None:
        """Take one of the places for requests that wait; Unavailable when all are taken."""
        with self._changed:
            if self.waiting >= self._places:
                raise Unavailable(f"the registry already holds {self.waiting} long polls and streams, its limit; try again in a moment")
            self.waiting += 1

    def leave(self) -> None:
        """Give the place back."""
        with self._changed:
            self.waiting -= 1
