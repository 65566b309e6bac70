"""Objects and threads that a test file leaves behind are charged to that file, never to the test running when they are collected.

The failure of a finaliser (an unclosed socket's ResourceWarning, which `filterwarnings` makes an error) and that of a thread have no
caller. pytest's own plugins charge them to the test that is running. Here they are kept until the last test of the file is over,
unreachable objects are collected, and all failures together are one error under the file's own name.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Generator

import pytest

# A finaliser can leave further objects to collect.
_ROUNDS = 3
_kept: list[Warning] = []
_running = ""


def _keep(kind: type[Warning], what: str, error: BaseException | None) -> None:
    """Keep only the text: the exception would keep its frames, and all they refer to, alive."""
    _kept.append(kind(f"{what} (seen while this ran: {_running})\n{''.join(traceback.format_exception(error)) if error else ''}"))


def _finaliser_failed(args: sys.UnraisableHookArgs) -> None:
    _keep(pytest.PytestUnraisableExceptionWarning, f"{args.err_msg or 'Exception ignored in'}: {args.object!r}", args.exc_value)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "?"
    _keep(pytest.PytestUnhandledThreadExceptionWarning, f"exception in thread {name}", args.exc_value)


def pytest_configure(config: pytest.Config) -> None:
    """Install the hooks in place of pytest's own plugins, which `addopts` turns off."""
    former = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = _finaliser_failed, _thread_failed

    def restore() -> None:
        sys.unraisablehook, threading.excepthook = former

    config.add_cleanup(restore)


def pytest_collection_finish() -> None:
    """Freeze the objects that exist before the first test: no test left them, so the collector need not examine them after each file."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Charge the file once its last test is over, with all fixtures that end with it, under the warning filters of that test."""
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
    """The failures kept so far and those found now, without those that the warning filters ignore."""
    for _ in range(_ROUNDS):
        gc.collect()
    found = []
    while _kept:
        try:
            warnings.warn(_kept.pop(0), stacklevel=1)
        except Warning as e:
            found.append(str(e))
    return found
