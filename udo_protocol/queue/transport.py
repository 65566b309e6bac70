"""Streams to a server: by the path of a Unix socket, or over TCP with mutual TLS (`rediss://host:port`).

Never over TCP without TLS: passwords and events would travel in clear text. The codec uses both through one interface.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Protocol

from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError

SCHEME = "rediss://"
# The size of a Unix socket's send buffer; the kernel takes twice that. A usual frame (10,000 rows of 32 bytes) fits into it, so that its
# sender need not wait in the middle of it for the server.
_WHOLE_FRAME_BYTES = 256 << 10


class ByteStream(Protocol):
    """A connected stream. BlockingIOError if the other side takes or sends nothing for the time set by `wait_at_most`."""

    def sendall(self, data: bytearray, /) -> None:
        """Send all of `data`."""

    def sendmsg(self, views: Sequence[memoryview], /) -> int:
        """Send some of the views, joined; returns the number of bytes."""

    def recv_into(self, view: memoryview, size: int, flags: int, /) -> int:
        """Receive some bytes; with MSG_WAITALL preferably all. 0: closed."""

    def wait_at_most(self, seconds: float) -> None:
        """Bound the time of each receive."""

    def close(self) -> None:
        """Release the socket."""


class _UnixSocket(socket.socket):
    """Stays blocking: the kernel's own time-outs spare a poll() before every read."""

    def wait_at_most(self, seconds: float) -> None:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def connect(address: str, timeout_s: float, tls: Tls | None = None) -> ByteStream:
    """A stream to the server at `address`.

    OSError if nothing listens, BlockingIOError after `timeout_s`, Untrusted if one side does not accept the other's certificate,
    UsageError for an address or files that cannot be used.
    """
    if address.startswith(SCHEME):
        from udo_protocol.queue import tls as over_tcp  # imported only here, since instances do not need it and start faster without

        return over_tcp.connect(address, timeout_s, tls)
    if "://" in address:
        raise UsageError(
            f"expected the path of a Unix socket or {SCHEME}host:port, got {address!r}: TCP connections to servers require TLS"
        )
    unix = _UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A server that hangs accepts neither connections nor commands once its buffers are full.
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WHOLE_FRAME_BYTES)
    try:
        unix.connect(address)
    except OSError:
        unix.close()
        raise
    return unix


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))
