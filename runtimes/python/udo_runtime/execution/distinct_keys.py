"""The keys of a frame as Python values: two events have the same key if Spark's groupBy would say so."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udo_runtime.state.codec import NAN

# Types for which Arrow and Python agree on when two values are the same key. (Floats: Arrow distinguishes 0.0 from -0.0.)
_SAME = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_date32)


def comparable(column: pa.Array) -> pa.Array:
    """A key column whose values are equal in Python if and only if they are the same key; the column itself if nothing has to change.

    0.0 and -0.0 are one key (for NaN see `values_of`). A time with a zone becomes the instant, in UTC: Python compares two times of one
    zone by their wall clock, which shows each time of an hour in autumn twice. Times are in µs, as in Spark.
    """
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC" if column.type.tz else None), safe=False)
    return column


def values_of(column: pa.Array) -> list[Any]:
    """The values of a comparable column, for use as keys of a dict."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return [NAN if value != value else value for value in values]
    return values


def comparable_value(value: Any) -> Any:
    """A single value in comparable form (see `comparable` and `values_of`)."""
    if isinstance(value, tuple):
        return tuple(map(comparable_value, value))
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def distinct(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[Any], pa.Array]:
    """(the number of each row's key, each key's value, each key's first row)."""
    if len(columns) == 1 and any(is_one(columns[0].type) for is_one in _SAME):
        encoded = columns[0].dictionary_encode(null_encoding="encode")
        count = pa.array(range(len(encoded.dictionary)), pa.int32())
        return encoded.indices, encoded.dictionary.to_pylist(), pc.index_in(count, encoded.indices)
    values = [values_of(column) for column in columns]
    rows: dict[Any, int] = {}
    index: list[int] = []
    first: list[int] = []
    for row, key in enumerate(values[0] if len(values) == 1 else zip(*values, strict=True)):
        if (number := rows.setdefault(key, len(rows))) == len(first):
            first.append(row)
        index.append(number)
    return pa.array(index, pa.int32()), list(rows), pa.array(first, pa.int32())
