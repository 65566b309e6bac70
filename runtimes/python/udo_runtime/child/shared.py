"""Memory that an engine shares with its operator's process, for tables that would cost more to send through their socket.

A memory file of two halves: tables of requests, which the engine writes and never reads, and tables of replies. The operator's process may
change both at any time, so the engine copies replies before it reads them. The operator's end copies too: a batch that user code keeps
does not change with the next message. The file's size is sealed: neither end can make the other fault by truncating it.
Each process gets a new file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress

import pyarrow as pa

from udo_protocol.errors import ProtocolError

# The environment variable that names the file, for the operator's process.
SHARED = "UDO_OPERATOR_SHARED"
# The size of each half. Pages that were never written take no memory.
HALF_BYTES = 8 << 20
# Smaller tables cost less in the message itself (measured: docs/performance.md).
LEAST_BYTES = 32 << 10
# A sealed file can neither shrink (processes that map it would fault) nor grow.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Half:
    """The half into which one end writes the tables of one message after the other."""

    def __init__(self, view: memoryview, start: int) -> None:
        self._view, self._start, self._used = view, start, 0

    def begin(self) -> None:
        """Forget the tables of the previous message."""
        self._used = 0

    def put(self, data: pa.Buffer) -> int | None:
        """Copy a table into this half and return its offset in the file; None if it is better sent in the message, or there is no room."""
        size = len(data)
        if not LEAST_BYTES <= size <= len(self._view) - self._used:
            return None
        at = self._used
        self._view[at : at + size] = memoryview(data).cast("B")
        self._used += size + -size % 64  # the alignment of Arrow's buffers
        return self._start + at


class SharedMemory:
    """One end's mapping of the file with this descriptor, which may then be closed."""

    def __init__(self, fd: int, *, engine: bool) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        half = len(self._map) // 2
        view = memoryview(self._map)
        self._theirs = half if engine else 0  # offset of the half that the other end writes
        self._incoming = view[self._theirs : self._theirs + half]
        self.out = Half(view[:half] if engine else view[half : 2 * half], 0 if engine else half)

    def take(self, offset: int, size: int) -> pa.Buffer:
        """A copy of a table that the other end has written. ProtocolError if it does not lie in that end's half."""
        at = offset - self._theirs
        if at < 0 or offset % 8 or size > len(self._incoming) - at:
            whole = len(self._incoming)
            raise ProtocolError(
                f"a table at {offset} of {size} bytes in shared memory, which does not lie at a multiple of 8 in the {whole} bytes "
                f"from {self._theirs}"
            )
        return pa.py_buffer(bytes(self._incoming[at : at + size]))


def make() -> int | None:
    """The descriptor of a new file; None if the system cannot make one."""
    try:
        fd = os.memfd_create("udo-operator", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        os.ftruncate(fd, 2 * HALF_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        return None
    return fd


def given() -> SharedMemory | None:
    """The operator's end of the file that the environment names; None if there is none, or it cannot be opened."""
    if not (path := os.environ.get(SHARED)):
        return None
    with suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return SharedMemory(fd, engine=False)
        finally:
            os.close(fd)
    return None
