"""How a connection reaches its server: by the path of a Unix socket, or by TCP with mutual TLS (`rediss://host:port`).

Never by TCP without TLS: passwords and events would travel readable. What the codec calls is the same for both.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Protocol

from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError

SCHEME = "rediss://"


class ByteStream(Protocol):
    """A connected stream. BlockingIOError where the other side takes or gives nothing for as long as `wait_at_most` said."""

    def sendall(self, data: bytearray, /) -> None:
        """Send all of it."""

    def sendmsg(self, views: Sequence[memoryview], /) -> int:
        """Send some of these, joined; how many bytes."""

    def recv_into(self, view: memoryview, size: int, flags: int, /) -> int:
        """Receive something; with MSG_WAITALL preferably all. 0: closed."""

    def wait_at_most(self, seconds: float) -> None:
        """Bound each receive."""

    def close(self) -> None:
        """Release it."""


class _UnixSocket(socket.socket):
    """Stays blocking: the kernel's own time-outs spare a poll() before every read."""

    def wait_at_most(self, seconds: float) -> None:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def connect(address: str, timeout_s: float, tls: Tls | None = None) -> ByteStream:
    """A stream to the server there.

    OSError if nothing listens (BlockingIOError: within the time), Untrusted if one side does not accept the other's certificate,
    UsageError for an address or files that cannot be used.
    """
    if address.startswith(SCHEME):
        from udo_protocol.queue import tls as over_tcp  # instances have no use for it, and start faster

        return over_tcp.connect(address, timeout_s, tls)
    if "://" in address:
        raise UsageError(
            f"expected the path of a Unix socket or {SCHEME}host:port, got {address!r}: TCP connections to servers require TLS"
        )
    unix = _UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A server that hangs takes in neither connections nor commands once its buffers are full.
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
    try:
        unix.connect(address)
    except OSError:
        unix.close()
        raise
    return unix


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))
