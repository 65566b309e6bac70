"""TLS in front of a server that is built without it: mutual, as in a server with TLS; decrypted bytes go to the server's Unix socket."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator

from udo_protocol.certificates import Tls

_CHUNK_BYTES = 1 << 16


@contextlib.contextmanager
def tls_front(own: Tls, unix_socket: str) -> Iterator[str]:
    """Yield `rediss://127.0.0.1:port`, open within the block; `own`: the front's certificate, and the authority for its clients'."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.load_verify_locations(own.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener is closed at the end
                while True:
                    plain, _ = listener.accept()
                    threading.Thread(target=_serve, args=(context, plain, unix_socket), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"rediss://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _serve(context: ssl.SSLContext, plain: socket.socket, unix_socket: str) -> None:
    """Forward one connection, until either side closes it."""
    with (
        contextlib.suppress(OSError),
        plain,
        context.wrap_socket(plain, server_side=True) as client,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.connect(unix_socket)
        while True:
            ready = [client] if client.pending() else select.select([client, server], [], [])[0]
            for source in ready:
                data = source.recv(_CHUNK_BYTES)
                if not data:
                    return
                (server if source is client else client).sendall(data)
