"""Waits until everything written to a server is on its disk."""

from __future__ import annotations

from udo_protocol.errors import ServerLost
from udo_protocol.queue.connection import Connection

# A disk that takes longer counts as lost.
WAIT_MS = 10_000


def synced(server: Connection, what: str) -> None:
    """Wait until all writes of this connection are on disk; ServerLost, which names `what` was written, if that takes too long."""
    if server.call("WAITAOF", 1, 0, WAIT_MS, timeout_s=WAIT_MS / 1000 + server.default_timeout_s)[0] < 1:
        raise late(server, what)


def late(server: Connection, what: str) -> ServerLost:
    """The error for a disk that has taken too long."""
    return ServerLost(f"the server on {server.path} did not make {what} durable within {WAIT_MS} ms")
