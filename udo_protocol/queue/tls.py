"""A stream to a server on another host: TCP with TLS, where each side shows the other a certificate."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from udo_protocol.errors import Untrusted, UsageError
from udo_protocol.queue.transport import SCHEME, Tls

T = TypeVar("T")


class TlsStream:
    """What the codec calls; see transport.ByteStream."""

    def __init__(self, stream: ssl.SSLSocket, address: str) -> None:
        self._stream, self._address = stream, address

    def sendall(self, data: bytearray) -> None:
        """Send all of it."""
        self._sent(lambda: self._stream.sendall(data))

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        """Send all of these."""
        for view in views:
            self._sent(lambda view=view: self._stream.sendall(view))  # type: ignore[misc]
        return sum(map(len, views))

    def recv_into(self, view: memoryview, _size: int, _flags: int) -> int:
        """Receive what has come; 0: closed."""
        return self._tried(lambda: self._stream.recv_into(view))

    def wait_at_most(self, seconds: float) -> None:
        """Bound each receive, and each send."""
        self._stream.settimeout(seconds)

    def close(self) -> None:
        """Release it."""
        self._stream.close()

    def _sent(self, send: Callable[[], None]) -> None:
        try:
            self._tried(send)
        except ConnectionError:
            self._tried(lambda: self._stream.recv(1))  # with TLS 1.3 a server says only now that it refuses the certificate
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


def connect(address: str, timeout_s: float, tls: Tls | None) -> TlsStream:
    """See transport.connect."""
    host, port = _host_and_port(address)
    if tls is None:
        raise UsageError(f"{address} needs certificates, since both sides authenticate: a CA, a certificate and its key")
    context = _context(tls)
    try:
        plain = socket.create_connection((host, port), timeout_s)
    except TimeoutError as e:
        raise BlockingIOError(str(e)) from e
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each write is all there is to say for now
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
    """What went wrong, as far as the other side says."""
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
        raise UsageError(f"expected {SCHEME}host:port, got {address!r}")
    return host, port


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the chain and the host's name
    try:
        context.load_verify_locations(tls.ca)
    except OSError as e:
        raise UsageError(f"expected certificates in PEM form in {tls.ca}: {e}") from e
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as e:
        raise UsageError(f"expected a certificate in {tls.certificate} and its key in {tls.key}, in PEM form: {e}") from e
    return context
