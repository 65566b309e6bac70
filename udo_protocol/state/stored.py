"""State as rows, as sent between an instance, a lane and a store: the body of RESTORE frames and of answers to STATE frames."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat

import pyarrow as pa

# Keys and values are MessagePack; a null value: the key was removed. The protocol fixes this schema, so frames do not name it.
ROWS = pa.schema([("group", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
# Bytes of a row besides its key and value.
_ROW_BYTES = 16
# Room for the header and Arrow's metadata in a frame of the largest size.
_HEAD_BYTES = 4096
# A key group's rows: packed key -> packed state; None: the key was removed.
Values = Mapping[bytes, bytes | None]


def bytes_of(values: Values) -> int:
    """The approximate number of bytes that these rows add to a frame."""
    return len(values) * _ROW_BYTES + sum(map(len, values)) + sum(map(len, filter(None, values.values())))


def fitting(values: Values, bound: int) -> Values:
    """The first rows that have at most `bound` bytes together, and at least one if there are any."""
    if bytes_of(values) <= bound:
        return values
    found: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in values.items():
        size += bytes_of({key: value})
        if found and size > bound:
            break
        found[key] = value
    return found


def body_bytes(frame_bytes: int) -> int:
    """The number of bytes of rows that fit into a frame of at most `frame_bytes`."""
    return max(frame_bytes - _HEAD_BYTES, frame_bytes // 2)


class Rows:
    """Rows that are being collected, by column: a list of tuples would take several times as long. `size`: their bytes, approximately."""

    def __init__(self) -> None:
        self._groups: list[int] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: int, values: Values) -> None:
        """Add rows of a key group."""
        self._groups += repeat(group, len(values))
        self._keys += values
        self._values += values.values()
        self.size += bytes_of(values)

    def batch(self) -> pa.RecordBatch:
        """The rows as a record batch with schema ROWS."""
        columns = (self._groups, self._keys, self._values)
        return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS)
