"""Background threads of long-lived processes: none of them ends silently.

An unexpected error is logged with its traceback and counted by kind of thread. `keep` then continues after a pause, for work that
can be restarted at any point; `once` is for work that is restarted elsewhere, or whose end has no consequence of its own.
The counts are per process; `udo status` and the node manager's metrics show them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from threading import Event, Lock, Thread

# Pauses after successive errors: the first is hardly noticed, the longest keeps the log readable.
PAUSE_FIRST_S, PAUSE_MOST_S = 0.1, 10.0
# After work has run this long without error, pauses start from the first again.
SETTLED_S = 60.0
Work = Callable[[], object]
_log = logging.getLogger(__name__)
_lock = Lock()
_errors: Counter[str] = Counter()


def errors() -> dict[str, int]:
    """Unexpected errors of this process's background threads since its start, by kind of thread."""
    with _lock:
        return dict(_errors)


def failed(kind: str, about: str = "") -> None:
    """Log and count the exception that is being handled."""
    with _lock:
        _errors[kind] += 1
    _log.exception("unexpected error in a background thread: %s %s", kind, about)


def run(kind: str, work: Work, over: Event, about: str = "") -> None:
    """Run `work` in this thread until it returns; rerun it after a pause whenever it raises, unless `over` is set."""
    pause_s = 0.0
    while True:
        started = time.monotonic()
        try:
            work()
            return
        except BaseException:  # even SystemExit would end only the thread
            failed(kind, about)
        pause_s = PAUSE_FIRST_S if time.monotonic() - started > SETTLED_S else min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MOST_S)
        if over.wait(pause_s):
            return


def keep(kind: str, work: Work, over: Event, about: str = "") -> Thread:
    """Start a thread that executes `run`; `about` distinguishes threads of one kind."""
    return _start(lambda: run(kind, work, over, about), kind, about)


def once(kind: str, work: Work, about: str = "") -> Thread:
    """Start a thread that runs `work` once."""

    def body() -> None:
        try:
            work()
        except BaseException:
            failed(kind, about)

    return _start(body, kind, about)


def _start(body: Callable[[], None], kind: str, about: str) -> Thread:
    thread = Thread(target=body, name=f"{kind}-{about}" if about else kind, daemon=True)
    thread.start()
    return thread
