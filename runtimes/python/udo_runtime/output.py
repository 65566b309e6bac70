"""What an operator writes, line by line, each with its time: `udo logs` has a line at once and says when it was written.

A finished line is never held back: a block-buffered one would wait for 8 KiB, and be lost with an instance that is killed.
"""

from __future__ import annotations

import io
import os
import sys
import time
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
        left = memoryview(text)
        while left:
            left = left[os.write(self._fd, left) :]
        self._within_line = not ended
        return len(given)


def _lines(stream: TextIO) -> TextIO:
    # What cannot be encoded is escaped: a print must not fail for the locale of a node.
    return io.TextIOWrapper(io.BufferedWriter(_Stamped(stream.fileno())), "utf-8", "backslashreplace", line_buffering=True)


def by_lines() -> None:
    """From now on stdout and stderr of this process are written line by line, with the time before each."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sys.stdout, sys.stderr = _lines(sys.stdout), _lines(sys.stderr)
