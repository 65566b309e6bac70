"""Rows of state as they travel between an instance, a lane and a store: the body of RESTORE and of the answer to STATE."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

# Keys and values are MessagePack; a null value: the key is gone. The protocol fixes this schema, so frames name none.
ROWS = pa.schema([("group", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
# What a row takes beside its key and value.
_ROW_BYTES = 16
# Room for a frame's header and Arrow's own in a frame of the greatest size.
_HEAD_BYTES = 4096
Row = tuple[int, bytes, bytes | None]


def row_bytes(key: bytes, value: bytes | None) -> int:
    """What a row adds to a frame, about."""
    return len(key) + len(value or b"") + _ROW_BYTES


def body_bytes(frame_bytes: int) -> int:
    """How many bytes of rows a frame of at most `frame_bytes` may hold."""
    return max(frame_bytes - _HEAD_BYTES, frame_bytes // 2)


def rows(items: Iterable[Row]) -> pa.RecordBatch:
    """As a record batch."""
    columns = list(zip(*items, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS)
