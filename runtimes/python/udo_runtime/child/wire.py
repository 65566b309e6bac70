"""The wire form of the operator protocol (docs/operator-protocol.md): messages and their tables over one Unix socket, all bounded.

Nothing that comes is trusted: lengths are held against their bounds before anything is read, and tables are validated in full before
anybody looks at them (udo_protocol.formats.body).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from udo_protocol.errors import ProtocolError, WaitTimeout
from udo_protocol.formats import body
from udo_protocol.limits import HEADER_BYTES
from udo_protocol.proto import operator_pb2 as pb

VERSION = 1
_PREFIX = struct.Struct("<II")
_PADS = [b"\0" * ((8 - n) % 8) for n in range(8)]

# The tables that the protocol itself defines; EVENTS and ROWS have the operator's schemas.
INDEX = pa.schema([("key", pa.int32())])
KEYS = pa.schema([("key", pa.binary()), ("state", pa.binary()), ("expires_us", pa.int64())])
STATES = pa.schema([("key", pa.int32()), ("state", pa.binary()), ("expires_us", pa.int64())])
TIMES = pa.schema([("key", pa.int32()), ("at_us", pa.int64())])  # SET and DUE


class Gone(Exception):
    """The other end of the socket has closed it."""


@dataclass(frozen=True)
class Received:
    """A message and its tables, not yet decoded."""

    message: pb.Message
    tables: dict[int, pa.Buffer] = field(default_factory=dict, repr=False)

    def table(self, kind: int, schema: pa.Schema) -> pa.RecordBatch | None:
        """One of its tables, validated in full; None if it has none such. ProtocolError says what is wrong with it."""
        if (data := self.tables.get(kind)) is None:
            return None
        try:
            body.require_columns(data, schema)
            return body.read(data, schema, None)
        except ProtocolError as e:
            raise ProtocolError(f"its table {pb.Part.Table.Name(kind)}: {e}") from e


def encode(message: pb.Message, tables: Iterable[tuple[int, pa.RecordBatch]] = ()) -> list[bytes | pa.Buffer]:
    """The message as pieces to be sent one after the other; `message` is given its parts."""
    pieces: list[bytes | pa.Buffer] = []
    size = 0
    for kind, batch in tables:
        data = batch.serialize()
        message.parts.add(table=kind, bytes=len(data))
        pieces += [data, _PADS[len(data) % 8]]
        size += len(data) + len(_PADS[len(data) % 8])
    head = message.SerializeToString()
    return [_PREFIX.pack(len(head), size) + head + _PADS[len(head) % 8], *pieces]


class Wire:
    """One connection. Every call is bounded by a `deadline` of time.monotonic(), None: for ever; WaitTimeout beyond it, Gone if nobody
    is there."""

    def __init__(self, sock: socket.socket, most_bytes: int) -> None:
        self._sock, self._most_bytes = sock, most_bytes

    def close(self) -> None:
        """The other end sees it closed."""
        self._sock.close()

    def send(self, pieces: Iterable[bytes | pa.Buffer], deadline: float | None) -> None:
        """All of them."""
        try:
            for piece in pieces:
                if len(piece):
                    self._bound(deadline)
                    self._sock.sendall(piece)
        except TimeoutError:
            raise WaitTimeout("it takes no more of what it is sent") from None
        except OSError as e:
            raise Gone from e

    def receive(self, deadline: float | None) -> Received:
        """The next message; ProtocolError if it is none."""
        head_len, body_len = _PREFIX.unpack(self._read(_PREFIX.size, deadline))
        if head_len > HEADER_BYTES:
            raise ProtocolError(f"a header of {head_len} bytes; the bound is {HEADER_BYTES}")
        if body_len > self._most_bytes:
            raise ProtocolError(f"a body of {body_len} bytes; the bound is {self._most_bytes}")
        head = self._read(head_len + len(_PADS[head_len % 8]), deadline)
        message = pb.Message()
        try:
            message.ParseFromString(bytes(head[:head_len]))
        except Exception as e:  # protobuf's DecodeError differs between its implementations
            raise ProtocolError(f"a header of {head_len} bytes that is no Message: {e}") from e
        return Received(message, self._tables(message, body_len, deadline))

    def _tables(self, message: pb.Message, body_len: int, deadline: float | None) -> dict[int, pa.Buffer]:
        tables: dict[int, pa.Buffer] = {}
        data = pa.py_buffer(self._read(body_len, deadline)) if body_len else pa.py_buffer(b"")
        at = 0
        for part in message.parts:
            if part.HasField("shared_offset"):
                raise ProtocolError("a table in shared memory, which was not agreed on")
            if part.table in tables:
                raise ProtocolError(f"two tables {part.table}")
            if at + part.bytes > body_len:
                break
            tables[part.table] = data.slice(at, part.bytes)
            at += part.bytes + len(_PADS[part.bytes % 8])
        else:
            if at == body_len:
                return tables
        raise ProtocolError(f"its parts are not the {body_len} bytes of its body")

    def _read(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        try:
            while at < size:
                self._bound(deadline)
                if not (read := self._sock.recv_into(view[at:])):
                    raise Gone
                at += read
        except TimeoutError:
            raise WaitTimeout("it did not answer in time") from None
        except OSError as e:
            raise Gone from e
        return data

    def _bound(self, deadline: float | None) -> None:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
