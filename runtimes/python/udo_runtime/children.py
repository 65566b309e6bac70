"""Makes processes that user code starts handle signals, and end, as usual, not as the runtime does.

A started program handles signals as usual: exec resets handlers, while an ignored signal would stay ignored. A forked process gets
the usual handlers from this module, and ends when it would return from user code into the runtime, which must run only once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_own_pid = 0  # 0: this is not a process of the runtime


def begin() -> None:
    """Mark this process as one of the runtime's, unlike those that it forks from now on."""
    global _own_pid
    _own_pid = os.getpid()


def answer_signals(stop: Callable[[], None]) -> None:
    """Call `begin`, and let SIGTERM call `stop`. SIGINT is ignored: Ctrl-C also reaches the parent, which stops this process properly."""
    begin()
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, _nothing)


def _nothing(*_: Any) -> None:
    pass


class _Fork(threading.local):
    """The signal mask of a thread before it forked this process; None if it is not forking, or in another process, e.g. a child's child."""

    mask: set[Any] | None = None


_fork = _Fork()


def _before() -> None:
    """Hold back the signals: the child would lose one that comes before it has the usual handlers."""
    if os.getpid() == _own_pid:
        _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _in_parent() -> None:
    if (mask := _fork.mask) is not None:
        _fork.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    if _fork.mask is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def end_if_forked(raised: BaseException | None = None) -> None:
    """If user code has forked this process, end it as a program would. Called after user code, which may have raised `raised`."""
    if _own_pid in (0, os.getpid()):
        return
    status = 0
    if isinstance(raised, SystemExit):
        status = raised.code if isinstance(raised.code, int) else int(raised.code is not None)
    elif raised is not None:
        traceback.print_exception(raised)
        status = 1
    end(status)


def end(status: int) -> None:
    """End this process at once, wherever it is; flushes its output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # e.g. in a signal handler during a write
            stream.flush()
    os._exit(status & 0xFF)
