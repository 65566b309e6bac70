"""The frame codec: bytes to frames and back, no I/O.

Wire form: 16-byte prefix (`UDOF`, version u16, reserved u16, header length u32, body length u32; little endian), the
protobuf FrameHeader, zero padding to 8 bytes, and the Arrow IPC record batch message (absent in frames without events).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from udo_protocol.cut import cut
from udo_protocol.errors import ProtocolError
from udo_protocol.formats import body
from udo_protocol.limits import EVENT_CHARS, HEADER_BYTES, MESSAGE_CHARS, TRACEBACK_CHARS
from udo_protocol.proto import frame_pb2 as pb

VERSION = 1
MAGIC = b"UDOF"
_PREFIX = struct.Struct("<4sHHII")
_PAD = [b"\0" * ((8 - n) % 8) for n in range(8)]

DATA, END, ANSWER, ERROR, SKIPPED, STALE = pb.DATA, pb.END, pb.ANSWER, pb.ERROR, pb.SKIPPED, pb.STALE
RESTORE, STATE = pb.RESTORE, pb.STATE
HANDOVER, ADOPT, PREPARE = pb.HANDOVER, pb.ADOPT, pb.PREPARE
Header = pb.FrameHeader
Label = pb.Label
Failure = pb.Failure
Kind: TypeAlias = pb.Kind

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame; `body` is the undecoded Arrow message, empty when there are no events."""

    header: pb.FrameHeader
    body: pa.Buffer | None = field(default=None, repr=False)

    def batch(self, schema: pa.Schema, *, text: bool = True) -> pa.RecordBatch:
        """The events, validated in full; `schema` is the one whose id is in the header. For `text` see body.read."""
        rows, which = self.header.rows, f"frame {self.header.number} of lane {self.header.lane}"
        if self.body is None:
            if rows:
                raise ProtocolError(f"{which} announces {rows} rows and has no body")
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
        try:
            return body.read(self.body, schema, rows, text=text)
        except ProtocolError as e:
            raise ProtocolError(f"{which}: {e}") from e


def bounded(failure: pb.Failure) -> pb.Failure:
    """The failure with bounded texts, in case its sender did not cut them."""
    return Failure(
        code=cut(failure.code, EVENT_CHARS),
        message=cut(failure.message, MESSAGE_CHARS),
        traceback=cut(failure.traceback, TRACEBACK_CHARS),
        event=cut(failure.event, EVENT_CHARS),
        retry=failure.retry,
        operator=cut(failure.operator, EVENT_CHARS),
        instance=cut(failure.instance, EVENT_CHARS),
    )


def encode(header: pb.FrameHeader, batch: pa.RecordBatch | None = None) -> list[Bytes]:
    """The frame as pieces to be sent one after the other, so that the events are not copied again. Sets the header's number of rows."""
    if batch is not None:
        header.rows = batch.num_rows
    head = header.SerializeToString()
    events = None if batch is None else batch.serialize()
    size = 0 if events is None else len(events)
    start = _PREFIX.pack(MAGIC, VERSION, 0, len(head), size) + head + _PAD[len(head) % 8]
    return [start] if events is None else [start, events]


def decode(data: bytes | bytearray | pa.Buffer) -> Frame:
    """The frame in these bytes; ProtocolError says what was expected and what came."""
    if len(data) < _PREFIX.size:
        raise ProtocolError(f"expected a frame of at least {_PREFIX.size} bytes, got {len(data)}: truncated")
    magic, version, _, head_len, body_len = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"expected a frame starting with {MAGIC!r}, got {bytes(magic)!r}")
    if version != VERSION:
        raise ProtocolError(f"frame of protocol version {version}; this side speaks version {VERSION}: upgrade the older side")
    if head_len > HEADER_BYTES:
        raise ProtocolError(f"a frame header of {head_len} bytes; the bound is {HEADER_BYTES}")
    start = _PREFIX.size + head_len + (-head_len % 8)
    if len(data) != start + body_len:
        raise ProtocolError(f"expected a frame of {start + body_len} bytes, got {len(data)}: truncated or garbled")
    header = pb.FrameHeader()
    try:
        header.ParseFromString(bytes(data[_PREFIX.size : _PREFIX.size + head_len]))
    except Exception as e:  # protobuf's DecodeError differs between its implementations
        raise ProtocolError(f"frame header of {head_len} bytes is not a FrameHeader: {e}") from e
    return Frame(header, pa.py_buffer(data).slice(start) if body_len else None)
