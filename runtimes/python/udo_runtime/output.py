"""An operator's output, line by line, with a time stamp: `udo logs` gets a line at once and shows when it was written.

A finished line is never held back: with block buffering it would wait for 8 KiB, and be lost with an instance that is killed.
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
        """Write all of `data`; called by BufferedWriter with its buffer."""
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
    """Write the text; returns whether all of it could be written. Never raises OSError, so that printing does not fail."""
    left = memoryview(text)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        return False
    return True


def begin_anew(fd: int, above: int = 0) -> bool:
    """Empty a log file larger than `above` bytes, leaving a note, since no node manager has kept it bounded; returns whether it did."""
    with suppress(OSError):
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_size > above:
            os.ftruncate(fd, 0)
            return _written(fd, f"… {found.st_size:,} bytes dropped: no node manager has kept this log bounded …\n".encode())
    return False


def _lines(stream: TextIO) -> TextIO:
    # Characters that cannot be encoded are escaped: a print must not fail because of a node's locale.
    return io.TextIOWrapper(io.BufferedWriter(_Stamped(stream.fileno())), "utf-8", "backslashreplace", line_buffering=True)


def by_lines() -> None:
    """Write stdout and stderr of this process line by line from now on, with the time before each line."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sys.stdout, sys.stderr = _lines(sys.stdout), _lines(sys.stderr)
