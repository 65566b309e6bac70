"""The body of an upload, read from the connection itself where gunicorn exposes it, which saves copying every byte several times."""

from __future__ import annotations

from typing import Any

from gunicorn.http.body import LengthReader

from registry.content.uploads import Fill


def filler(environ: dict[str, Any]) -> Fill:
    """A function that puts the next bytes of the request body into a buffer and returns their number, 0 at the end; OSError if cut off."""
    stream, connection = environ["wsgi.input"], environ.get("gunicorn.socket")
    reader = getattr(stream, "reader", None)
    if connection is None or not isinstance(reader, LengthReader):
        return lambda buffer: _copied(stream.read(len(buffer)), buffer)

    def fill(buffer: memoryview) -> int:
        wanted = min(len(buffer), reader.length)
        if held := len(reader.unreader.buf.getvalue()):  # came together with the headers
            return _copied(reader.read(min(held, wanted)), buffer)
        try:
            came: int = connection.recv_into(buffer[:wanted]) if wanted else 0
        except OSError:
            stream.failed = True  # the start of the next request is unknown
            raise
        reader.length -= came  # the bytes gunicorn still has to skip before the next request
        return came

    return fill


def _copied(data: bytes, buffer: memoryview) -> int:
    buffer[: len(data)] = data
    return len(data)
