"""Threads that call a deployment again and again until the end of a `with` block, as many queries would."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Lane


class Callers:
    """Each of `threads` calls `once(thread, turn)` with turns 0, 1, 2 … until the end; `once` returns the number of events answered.

    A thread that raises makes no more calls; its exception is in `failures`.
    """

    def __init__(self, threads: int, once: Callable[[int, int], int]) -> None:
        self._once, self._end = once, threading.Event()
        self.failures: list[BaseException] = []
        self.answered = 0
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(bound(120))

    def _run(self, thread: int) -> None:
        try:
            for turn in itertools.count():
                if self._end.is_set():
                    return
                self.answered += self._once(thread, turn)
        except BaseException as e:
            self.failures.append(e)

    def wait(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until it holds; fail at once if a caller has failed."""
        wait_until(lambda: holds() or bool(self.failures), timeout_s, what)
        assert not self.failures, self.failures

    def more(self, events: int, what: str) -> None:
        """Wait until more than this many further events have been answered."""
        seen = self.answered
        self.wait(lambda: self.answered > seen + events, 60, what)


def answers(api: Any, deployment: str, lane: str, values: list[int], **options: Any) -> list[list[int]]:
    """The answers on a new lane to these values, all sent at once, a frame each."""
    opened = Lane(api, deployment, lane, **options)
    for value in values:
        opened.send([value])
    came = [opened.values(opened.receive(60)) for _ in values]
    opened.end.close()
    opened.conn.close()
    return came
