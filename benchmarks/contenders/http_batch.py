"""HTTP: one POST per batch over a Unix socket, kept alive, served by gunicorn; the usual way to call a service from a task.

`wsgi` is the application; a request waits for its response, as an HTTP call does.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks.contenders.functions import FUNCTIONS

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_S = 30.0


def pack(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as a complete Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def unpack(data: bytes) -> pa.RecordBatch:
    """Inverse of pack."""
    return pa.ipc.open_stream(data).read_next_batch()


def wsgi(environ: WSGIEnvironment, start_response: Callable[..., Any]) -> list[bytes]:
    """Answer a POST of an Arrow stream to /<function> with an Arrow stream."""
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    answer = pack(FUNCTIONS[environ["PATH_INFO"].lstrip("/")](unpack(body))).to_pybytes()
    start_response("200 OK", [("Content-Type", ARROW), ("Content-Length", str(len(answer)))])
    return [answer]


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the path instead of to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def through_http(df: DataFrame, operator: str, path: str) -> DataFrame:
    """Call the function by a mapInArrow whose worker posts each batch."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        connection = UnixConnection(path)
        try:
            for batch in batches:
                connection.request("POST", f"/{operator}", pack(batch).to_pybytes(), {"Content-Type": ARROW})
                response = connection.getresponse()
                body = response.read()
                if response.status != 200:
                    raise RuntimeError(f"HTTP {response.status}: {body[:200]!r}")
                yield unpack(body)
        finally:
            connection.close()

    return df.mapInArrow(apply, df.schema)
