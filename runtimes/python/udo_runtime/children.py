"""What user code starts has nothing of the runtime's own way to answer signals and to end.

A program that is started answers signals as usual: handlers end with exec, while an ignored signal would stay ignored. A forked process is
given the usual answers here, and ends where it would come back from user code into the runtime, of which there is one.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_own_pid = 0  # 0: this is no process of the runtime's


def begin() -> None:
    """This is a process of the runtime's, and what it forks from here on is none."""
    global _own_pid
    _own_pid = os.getpid()


def answer_signals(stop: Callable[[], None]) -> None:
    """The same, and SIGTERM calls `stop`; Ctrl-C goes to whoever started this process, too, and stops it in order."""
    begin()
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, _nothing)


def _nothing(*_: Any) -> None:
    pass


def _as_usual() -> None:
    if not _own_pid:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


os.register_at_fork(after_in_child=_as_usual)


def end_if_forked(raised: BaseException | None = None) -> None:
    """Behind user code, which may have raised this: a process that it has forked ends, as a program would."""
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
    """End this process at once, wherever it is; what was printed is written."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # also what is being written right now, in a handler of a signal
            stream.flush()
    os._exit(status & 0xFF)
