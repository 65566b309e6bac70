"""What an operator writes, line by line, each with its time: `udo logs` has a line at once and says when it was written.

A finished line is never held back: a block-buffered one would wait for 8 KiB, and be lost with an instance that is killed.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from contextlib import suppress
from typing import Any, TextIO


class _Stamped(io.RawIOBase):
    """Writes to a descriptor and puts the time before each line: 2026-01-31 12:00:00,123."""

    def __init__(self, fd: int) -> None:
        self._fd, self._within_line = fd, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any, /) -> int:
        """All of it; BufferedWriter calls it with what has gathered."""
        given = bytes(data)
        now_s = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now_s))},{int(now_s % 1 * 1000):03d} ".encode()
        ended = given.endswith(b"\n")
        text = (b"" if self._within_line else stamp) + (given[:-1] if ended else given).replace(b"\n", b"\n" + stamp) + b"\n" * ended
        if not _written(self._fd, text) and begin_anew(self._fd):
            _written(self._fd, text)
        self._within_line = not ended
        return len(given)


def _written(fd: int, text: bytes) -> bool:
    """Whether all of it could be; who prints is never the one that fails."""
    left = memoryview(text)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        return False
    return True


def begin_anew(fd: int, above: int = 0) -> bool:
    """Drop what a log file holds, with a note, if that is more than `above` bytes: nobody has kept it bounded."""
    with suppress(OSError):
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_size > above:
            os.ftruncate(fd, 0)
            return _written(fd, f"… {found.st_size:,} bytes dropped: no node manager has kept this log bounded …\n".encode())
    return False


def _lines(stream: TextIO) -> TextIO:
    # What cannot be encoded is escaped: a print must not fail for the locale of a node.
    return io.TextIOWrapper(io.BufferedWriter(_Stamped(stream.fileno())), "utf-8", "backslashreplace", line_buffering=True)


def by_lines() -> None:
    """From now on stdout and stderr of this process are written line by line, with the time before each."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sys.stdout, sys.stderr = _lines(sys.stdout), _lines(sys.stderr)
