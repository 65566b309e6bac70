"""State as rows, as sent between an instance, a lane and a store: the body of RESTORE frames and of answers to STATE frames."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

# Keys and values are MessagePack; a null value: the key was removed. The protocol fixes this schema, so frames do not name it.
ROWS = pa.schema([("group", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
# Bytes of a row besides its key and value.
_ROW_BYTES = 16
# Room for the header and Arrow's metadata in a frame of the largest size.
_HEAD_BYTES = 4096
Row = tuple[int, bytes, bytes | None]


def row_bytes(key: bytes, value: bytes | None) -> int:
    """The approximate number of bytes that a row adds to a frame."""
    return len(key) + len(value or b"") + _ROW_BYTES


def body_bytes(frame_bytes: int) -> int:
    """The number of bytes of rows that fit into a frame of at most `frame_bytes`."""
    return max(frame_bytes - _HEAD_BYTES, frame_bytes // 2)


def rows(items: Iterable[Row]) -> pa.RecordBatch:
    """Rows as a record batch with schema ROWS."""
    columns = list(zip(*items, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS)
