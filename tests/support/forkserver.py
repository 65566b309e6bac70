"""Forks processes whose imports are done. Run by forked.py, as a script that needs only the standard library.

Arguments: the descriptor of a socket, then the modules to import. A request is one message: a JSON object with `module` or `script`,
`arguments`, `environment`, `directory` and `session` (whether the process leads a session of its own), and four descriptors: stdin, stdout,
stderr, and a pipe to which the process's id is written, and its wait status when it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

_MESSAGE_BYTES = 1 << 20
_NUMBER = struct.Struct("i")


def _preload(modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    for name in modules:
        if name.endswith(".__main__"):  # it is run later, as the main module
            del sys.modules[name]
    gc.collect()
    gc.freeze()


def _reap(running: dict[int, int]) -> None:
    """Report processes that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the starting process does not wait for it
            os.write(pipe, _NUMBER.pack(status))
        os.close(pipe)


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Serve requests until there are no more, then return None. In a forked process, return its request and its descriptors."""
    running: dict[int, int] = {}  # process id -> pipe
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        _reap(running)
        if requests not in ready:
            continue
        data, given, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not data:
            return None
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for pipe in (woken, wake, given.pop(), *running.values()):
                os.close(pipe)
            requests.close()
            return json.loads(data), given
        *streams, running[pid] = given
        for stream in streams:
            os.close(stream)
        os.write(running[pid], _NUMBER.pack(pid))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take on the descriptors, session, environment, directory and arguments of the request."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    sys.argv = [request.get("module") or request["script"], *request["arguments"]]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    _preload(sys.argv[2:])
    if (found := _serve(asked)) is None:
        return
    request, streams = found
    _become(request, streams)
    if "script" in request:
        runpy.run_path(request["script"], run_name="__main__")
    else:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
