"""What a test file leaves to be collected is charged to that file, never to the test that runs when the collector comes by.

The failure of a finaliser (an unclosed socket's ResourceWarning, which `filterwarnings` makes an error) and that of a thread have no
caller. pytest's own plugins charge them to whatever test is running. Here they are kept until the last test of the file is over, what
nobody can reach any more is collected, and all of it is one error under the file's own name.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Generator

import pytest

# A finaliser can leave further objects to the collector.
_ROUNDS = 3
_kept: list[Warning] = []
_running = ""


def _keep(kind: type[Warning], what: str, error: BaseException | None) -> None:
    """Only the text: the exception would keep its frames, and what they hold, alive."""
    _kept.append(kind(f"{what} (seen while this ran: {_running})\n{''.join(traceback.format_exception(error)) if error else ''}"))


def _finaliser_failed(args: sys.UnraisableHookArgs) -> None:
    _keep(pytest.PytestUnraisableExceptionWarning, f"{args.err_msg or 'Exception ignored in'}: {args.object!r}", args.exc_value)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "?"
    _keep(pytest.PytestUnhandledThreadExceptionWarning, f"exception in thread {name}", args.exc_value)


def pytest_configure(config: pytest.Config) -> None:
    """In place of pytest's own plugins, which `addopts` turns off."""
    former = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = _finaliser_failed, _thread_failed

    def restore() -> None:
        sys.unraisablehook, threading.excepthook = former

    config.add_cleanup(restore)


def pytest_collection_finish() -> None:
    """What is there before the first test no test can leave behind: the collector need not look at it after each file."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Charge the file when its last test and all fixtures that end with it are over, under the warning filters of that test."""
    global _running
    _running = item.nodeid
    result = yield
    if nextitem is None or nextitem.path != item.path:
        found = _collected()
        if found:
            file = item.nodeid.split("::")[0]
            report = pytest.TestReport(file, (file, None, "what the file left behind"), {}, "failed", "\n".join(found), "teardown")
            item.ihook.pytest_runtest_logreport(report=report)
    return result


def _collected() -> list[str]:
    """What was kept and what is found now, less what the filters let pass."""
    for _ in range(_ROUNDS):
        gc.collect()
    found = []
    while _kept:
        try:
            warnings.warn(_kept.pop(0), stacklevel=1)
        except Warning as e:
            found.append(str(e))
    return found
