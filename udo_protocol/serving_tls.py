"""The server's side of TLS in Python: every client must have a certificate. Replaced certificates apply to new connections."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any

from udo_protocol.certificates import Tls, loaded
from udo_protocol.errors import UsageError

_log = logging.getLogger(__name__)
# A handshake takes a few round trips; a client that sends nothing must not hold a thread.
HANDSHAKE_S = 10.0


class _Context(ssl.SSLContext):
    """Bounds the time that a client may take for the handshake."""

    wait_s: float

    def wrap_socket(self, sock: socket.socket, *args: Any, **options: Any) -> ssl.SSLSocket:
        sock.settimeout(self.wait_s)
        return super().wrap_socket(sock, *args, **options)


class ServerTls:
    """Certificates of a server. UsageError if they cannot be used at the start."""

    def __init__(self, tls: Tls, handshake_s: float = HANDSHAKE_S) -> None:
        self._tls, self._handshake_s = tls, handshake_s
        self._stamp, self._unusable = tls.stamp(), ""
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection, from the current files, or from the last usable ones."""
        try:
            if (stamp := self._tls.stamp()) != self._stamp:
                self._context, self._stamp, self._unusable = self._load(), stamp, ""
        except UsageError as e:
            if str(e) != self._unusable:
                _log.error("new certificates cannot be used; the former ones stay in effect: %s", e)
            self._unusable = str(e)
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.wait_s = self._handshake_s
        context.verify_mode = ssl.CERT_REQUIRED
        return loaded(context, self._tls)
