"""The wire form of the operator protocol (docs/operator-protocol.md): messages and their tables over one Unix socket, all bounded.

Nothing received is trusted: lengths are checked against their bounds before anything is read, and tables are validated in full before
they are used (udo_protocol.formats.body).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from udo_protocol.errors import ProtocolError, WaitTimeout
from udo_protocol.formats import body
from udo_protocol.limits import HEADER_BYTES
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.shared import SharedMemory

VERSION = 1
_PREFIX = struct.Struct("<II")
_PADS = [b"\0" * ((8 - n) % 8) for n in range(8)]
# A message without large tables comes in one piece.
_READ_BYTES = 64 << 10

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
        """The table of that kind, validated in full; None if there is none. ProtocolError says what is wrong with it."""
        if (data := self.tables.get(kind)) is None:
            return None
        try:
            return body.read(data, schema, None, exact=True)
        except ProtocolError as e:
            raise ProtocolError(f"its table {pb.Part.Table.Name(kind)}: {e}") from e


def encode(
    message: pb.Message, tables: Iterable[tuple[int, pa.RecordBatch]] = (), shared: SharedMemory | None = None
) -> list[bytes | pa.Buffer]:
    """The message as pieces to be sent one after the other; sets `message.parts`. Large tables go into `shared`, if there is any."""
    pieces: list[bytes | pa.Buffer] = []
    size = 0
    if shared is not None:
        shared.out.begin()
    for kind, batch in tables:
        data = batch.serialize()
        if shared is not None and (at := shared.out.put(data)) is not None:
            message.parts.add(table=kind, bytes=len(data), shared_offset=at)
            continue
        message.parts.add(table=kind, bytes=len(data))
        pieces += [data, _PADS[len(data) % 8]]
        size += len(data) + len(_PADS[len(data) % 8])
    head = message.SerializeToString()
    return [_PREFIX.pack(len(head), size) + head + _PADS[len(head) % 8], *pieces]


class Wire:
    """One connection. Every call is bounded by a `deadline` of time.monotonic() (None: no bound); WaitTimeout beyond it, Gone if the
    other end has closed. `shared`: the memory that both ends have agreed to use."""

    def __init__(self, sock: socket.socket, most_bytes: int) -> None:
        self._sock, self._most_bytes = sock, most_bytes
        self.shared: SharedMemory | None = None
        self._sending = Lock()  # messages are sent whole, even if other threads send log records
        self._read, self._at, self._end = memoryview(bytearray(_READ_BYTES)), 0, 0  # bytes received and not yet taken

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def send(self, pieces: Iterable[bytes | pa.Buffer], deadline: float | None) -> None:
        """Send all pieces."""
        left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        try:
            with self._sending:
                while left:
                    self._bound(deadline)
                    sent = self._sock.sendmsg(left)
                    while left and sent >= len(left[0]):
                        sent -= len(left.pop(0))
                    if sent:
                        left[0] = left[0][sent:]
        except TimeoutError:
            raise WaitTimeout("it takes no more of what it is sent") from None
        except OSError as e:
            raise Gone from e

    def receive(self, deadline: float | None) -> Received:
        """Receive the next message; ProtocolError if it is invalid."""
        head_len, body_len = _PREFIX.unpack(self._take(_PREFIX.size, deadline))
        if head_len > HEADER_BYTES:
            raise ProtocolError(f"a header of {head_len} bytes; the bound is {HEADER_BYTES}")
        if body_len > self._most_bytes:
            raise ProtocolError(f"a body of {body_len} bytes; the bound is {self._most_bytes}")
        head = self._take(head_len + len(_PADS[head_len % 8]), deadline)
        message = pb.Message()
        try:
            message.ParseFromString(bytes(head[:head_len]))
        except Exception as e:  # protobuf's DecodeError differs between its implementations
            raise ProtocolError(f"a header of {head_len} bytes that is no Message: {e}") from e
        return Received(message, self._tables(message, body_len, deadline))

    def _tables(self, message: pb.Message, body_len: int, deadline: float | None) -> dict[int, pa.Buffer]:
        tables: dict[int, pa.Buffer] = {}
        data = self._body(body_len, deadline)
        at = 0
        for part in message.parts:
            if part.table in tables:
                raise ProtocolError(f"two tables {part.table}")
            if part.HasField("shared_offset"):
                if self.shared is None:
                    raise ProtocolError("a table in shared memory, which was not agreed on")
                tables[part.table] = self.shared.take(part.shared_offset, part.bytes)
                continue
            if at + part.bytes > body_len:
                break
            tables[part.table] = data.slice(at, part.bytes)
            at += part.bytes + len(_PADS[part.bytes % 8])
        else:
            if at == body_len:
                return tables
        raise ProtocolError(f"its parts are not the {body_len} bytes of its body")

    def _body(self, size: int, deadline: float | None) -> pa.Buffer:
        data = pa.allocate_buffer(size)
        if size:
            view = memoryview(data).cast("B")
            at = min(size, self._end - self._at)
            view[:at] = self._read[self._at : self._at + at]
            self._at += at
            while at < size:
                at += self._some(view[at:], deadline)
        return data

    def _take(self, size: int, deadline: float | None) -> memoryview:
        """The next bytes, valid until the next call."""
        if self._end - self._at < size:
            into = self._read if size <= len(self._read) else memoryview(bytearray(size))
            rest = self._end - self._at
            into[:rest] = bytes(self._read[self._at : self._end])
            self._at, self._end = 0, rest
            while self._end < size:
                # For a large header only its own bytes are read: bytes read ahead must be in the permanent buffer.
                self._end += self._some(into[self._end : len(into)], deadline)
            if into is not self._read:
                self._end = 0
                return into
        at, self._at = self._at, self._at + size
        return self._read[at : self._at]

    def _some(self, into: memoryview, deadline: float | None) -> int:
        """Receive the available bytes, at least one; returns their number."""
        try:
            self._bound(deadline)
            if not (read := self._sock.recv_into(into)):
                raise Gone
        except TimeoutError:
            raise WaitTimeout("it did not answer in time") from None
        except OSError as e:
            raise Gone from e
        return read

    def _bound(self, deadline: float | None) -> None:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
