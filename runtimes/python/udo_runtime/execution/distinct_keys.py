"""The distinct keys of a frame, as Python has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Types of which Arrow and Python agree on when two values are the same key. (Floats: Arrow tells 0.0 from -0.0.)
_SAME = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_date32)


def distinct(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[Any], pa.Array]:
    """For each row the number of its key; each key's value; its first row."""
    if len(columns) == 1 and any(is_one(columns[0].type) for is_one in _SAME):
        encoded = columns[0].dictionary_encode(null_encoding="encode")
        count = pa.array(range(len(encoded.dictionary)), pa.int32())
        return encoded.indices, encoded.dictionary.to_pylist(), pc.index_in(count, encoded.indices)
    values = [column.to_pylist() for column in columns]
    rows: dict[Any, int] = {}
    index: list[int] = []
    first: list[int] = []
    for row, key in enumerate(values[0] if len(values) == 1 else zip(*values, strict=True)):
        if (number := rows.setdefault(key, len(rows))) == len(first):
            first.append(row)
        index.append(number)
    return pa.array(index, pa.int32()), list(rows), pa.array(first, pa.int32())
