"""A stream to a server on another host: TCP with mutual TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from udo_protocol.certificates import Tls, client_context
from udo_protocol.errors import Untrusted, UsageError

T = TypeVar("T")
# A host that takes longer to accept a connection is down; a server that hangs is noticed by the wait for its replies.
CONNECT_S = 10.0
# The most that a TLS record holds.
_RECORD_BYTES = 16 << 10


class TlsStream:
    """A transport.ByteStream over TLS."""

    def __init__(self, stream: ssl.SSLSocket, address: str) -> None:
        self._stream, self._address = stream, address

    def sendall(self, data: bytearray) -> None:
        """Send all of `data`."""
        self._sent(lambda: self._stream.sendall(data))

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        """Send all views."""
        for piece in _records(views):
            self._sent(lambda piece=piece: self._stream.sendall(piece))  # type: ignore[misc]
        return sum(map(len, views))

    def recv_into(self, view: memoryview, _size: int, _flags: int) -> int:
        """Receive available bytes; 0: closed."""
        return self._tried(lambda: self._stream.recv_into(view))

    def wait_at_most(self, seconds: float) -> None:
        """Bound the time of each receive and each send."""
        self._stream.settimeout(seconds)

    def close(self) -> None:
        """Release the socket."""
        self._stream.close()

    def _sent(self, send: Callable[[], None]) -> None:
        try:
            self._tried(send)
        except ConnectionError:
            self._tried(lambda: self._stream.recv(1))  # with TLS 1.3, a server's refusal of the certificate is only visible now
            raise

    def _tried(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except TimeoutError as e:
            raise BlockingIOError(str(e)) from e
        except ssl.SSLEOFError as e:
            raise ConnectionResetError("it closed the connection") from e
        except ssl.SSLError as e:
            raise _refused(self._address, e) from e


def _records(views: Sequence[memoryview]) -> Iterator[memoryview | bytearray]:
    """The same bytes, with small views joined: each piece is at least one TLS record, and one system call."""
    joined = bytearray()
    for view in views:
        if len(view) < _RECORD_BYTES:
            joined += view
        else:
            if joined:
                yield joined
            joined = bytearray()
            yield view
    if joined:
        yield joined


def connect(address: str, timeout_s: float, tls: Tls | None) -> TlsStream:
    """See transport.connect."""
    host, port = _host_and_port(address)
    if tls is None:
        raise UsageError(
            f"{address} needs certificates, since both sides authenticate: a folder with a CA, a certificate and its key (spark.udo.tls, "
            "UDO_TLS; docs/executors.md)"
        )
    context = client_context(tls)
    try:
        plain = socket.create_connection((host, port), min(timeout_s, CONNECT_S))
    except TimeoutError as e:
        raise BlockingIOError(str(e)) from e
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no further write follows soon
        plain.settimeout(timeout_s)
        return TlsStream(context.wrap_socket(plain, server_hostname=host), address)
    except TimeoutError as e:
        plain.close()
        raise BlockingIOError(str(e)) from e
    except ssl.SSLCertVerificationError as e:
        plain.close()
        raise Untrusted(
            f"the server on {address} shows a certificate that is not accepted: {e.verify_message}; expected a valid one for {host!r} "
            f"that {tls.ca} vouches for"
        ) from e
    except ssl.SSLError as e:
        plain.close()
        raise _refused(address, e) from e
    except BaseException:
        plain.close()
        raise


def _refused(address: str, e: ssl.SSLError) -> Exception:
    """The error for a TLS failure, with the other side's reason if it gave one."""
    reason = (e.reason or str(e)).lower().replace("_", " ")
    if "alert" in reason:
        return Untrusted(f"the server on {address} refuses this side's certificate: {reason}")
    return Untrusted(f"no TLS with the server on {address}: {reason}; is it the port for TLS?")


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path or parts.username:
        raise UsageError(f"expected {parts.scheme}://host:port, got {address!r}")
    return host, port
