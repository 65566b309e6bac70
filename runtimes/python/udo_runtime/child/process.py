"""An operator's process: start, connection, output, end. Its output goes to our log, and its last lines are kept.

The process gets one socket, memory to share with its engine, and an environment of its own; nothing of the engine's (docs/sandbox.md).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from udo_protocol import signals, supervised
from udo_protocol.errors import OperatorError, WaitTimeout
from udo_protocol.limits import LOG_END_CHARS, LOG_LINE_BYTES
from udo_runtime.child import shared

SOCKET = "UDO_OPERATOR_SOCKET"
# The folder of the files that were given at deployment.
DIRECTORY = "UDO_DIRECTORY"
# sun_path holds 108 bytes including the terminating zero.
_SOCKET_PATH_BYTES = 107
# Wait for the last output: a process that has ended writes no more, but one that it left behind may hold the pipe open forever.
_LAST_WORDS_S = 1.0
# Bytes of its output read at once: as much as a pipe holds.
_CHUNK_BYTES = 1 << 16
# Wait for the end of a process after SIGKILL.
_KILL_S = 10.0
# Added to a signal's number in the exit status, by a sandbox or a shell whose program was ended by that signal.
_SIGNALLED = 128


@dataclass(frozen=True)
class Launch:
    """How to start an operator's process. `argv`: the sandbox, then the command; `directory`: its own, for the socket."""

    argv: tuple[str, ...]
    cwd: str
    directory: str
    env: Mapping[str, str] = field(repr=False)  # may hold secrets
    open_timeout_s: float = 60.0
    answer_timeout_s: float = 60.0
    rehearse: str = ""

    @classmethod
    def of(cls, how: Mapping[str, Any], given: Mapping[str, str]) -> Launch:
        """From an assignment's `command` (docs/protocol.md) and the deployment's additions to the environment."""
        return cls(
            tuple(how["argv"]),
            how["cwd"],
            how["directory"],
            {**how["env"], **given},
            how["open_timeout_s"],
            how["answer_timeout_s"],
            how.get("rehearse", ""),
        )


class Process:
    """One started process. `shared`: the memory offered to it, or None."""

    def __init__(self, launch: Launch) -> None:
        # In a container the directory is read-only, and /tmp is its own.
        self._made = "" if os.access(launch.directory, os.W_OK) else tempfile.mkdtemp(prefix="udo-")
        path = Path(self._made or launch.directory) / ".s"
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise OperatorError(f"{path} is too long for a Unix socket ({_SOCKET_PATH_BYTES} bytes): choose a shorter home for the node")
        path.unlink(missing_ok=True)
        self._path = path
        self._last = ""
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        memory = shared.make()
        self.shared = None if memory is None else shared.SharedMemory(memory, engine=True)
        try:
            self._listening.bind(str(path))
            path.chmod(0o666)  # a container runs as another user; the folder's mode restricts access
            self._listening.listen(1)
            env = {**launch.env, SOCKET: str(path), DIRECTORY: launch.directory}
            if memory is not None:
                env[shared.SHARED] = f"/proc/self/fd/{memory}"
            self._popen = subprocess.Popen(
                launch.argv,
                cwd=launch.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a signal to the engine's group is for the engine only
                pass_fds=() if memory is None else (memory,),
            )
        except OSError as e:
            self._close_listening()
            raise OperatorError(f"the command cannot be started: {e}") from e
        finally:
            if memory is not None:
                os.close(memory)
        self._over = Event()
        self._reader = supervised.keep("operator-output", self._listen, self._over)

    def accept(self, deadline: float) -> socket.socket:
        """Wait for the process to connect; OperatorError if it ends before, WaitTimeout if it does not connect."""
        try:
            ended = os.pidfd_open(self._popen.pid)
            try:
                poll = select.poll()
                poll.register(self._listening, select.POLLIN)
                poll.register(ended, select.POLLIN)
                ready = {fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
                if self._listening.fileno() in ready:
                    return self._listening.accept()[0]
                if ready:
                    raise OperatorError(f"it {self.end()} before it connected to ${SOCKET}")
                raise WaitTimeout(f"it did not connect to ${SOCKET}")
            finally:
                os.close(ended)
        finally:
            self._close_listening()

    def end(self, wait_s: float = 0.0) -> str:
        """Kill the process unless it ends by itself within `wait_s`, and kill those that it leaves behind; returns how it ended."""
        killed = "" if self._ends_within(wait_s) else "was killed"
        if self._popen.returncode is None:  # until it has been waited for, its pid is also that of its group
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait(_KILL_S)
        self._close_listening()
        self._over.set()
        self._reader.join(_LAST_WORDS_S)
        if not self._reader.is_alive() and self._popen.stdout is not None:
            self._popen.stdout.close()  # the reader ended with an error
        if killed:
            return killed
        status = _SIGNALLED - status if status > _SIGNALLED else status
        if status < 0:
            return f"was killed by signal {signals.named(-status)}"
        return f"ended with exit status {status}"

    @property
    def pid(self) -> int:
        """The pid of the started process: the operator, or the sandbox around it."""
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ends_within(0.0)

    def _ends_within(self, wait_s: float) -> bool:
        """Wait for the end of the process and leave it unreaped, so that no other process can get its number, or its group's."""
        if self._popen.returncode is not None:
            return True
        ended = os.pidfd_open(self._popen.pid)
        try:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            return bool(poll.poll(wait_s * 1000))
        finally:
            os.close(ended)

    @property
    def last_lines(self) -> str:
        """The end of its output, e.g. a stack trace."""
        return self._last.rstrip("\n")

    def _listen(self) -> None:
        """Pass its output to our log, many lines at a time, so that the process does not wait when it prints."""
        assert self._popen.stdout is not None
        rest = b""
        while data := os.read(self._popen.stdout.fileno(), _CHUNK_BYTES):
            rest += data
            if (end := rest.rfind(b"\n") + 1) or len(rest) >= LOG_LINE_BYTES:
                self._write(rest[: end or len(rest)])
                rest = rest[end:] if end else b""
        self._write(rest)
        self._popen.stdout.close()

    def _write(self, lines: bytes) -> None:
        if not lines:
            return
        text = lines.decode("utf-8", "backslashreplace")
        text = text if text.endswith("\n") else text + "\n"
        self._last = (self._last + text)[-LOG_END_CHARS:]
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def _close_listening(self) -> None:
        self._listening.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            if self._made:
                os.rmdir(self._made)
