"""Finds the differences of two answers to the same events: arrays in, row numbers out. Null equals null, NaN equals NaN."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Longer values are cut in examples; the counts are of whole values.
_VALUE_CHARACTERS = 500


def unequal(served: pa.Array, new: pa.Array) -> list[int]:
    """The rows in which two arrays of the same type and length differ."""
    if served.equals(new):
        return []
    try:
        same = pc.or_(pc.fill_null(pc.equal(served, new), False), pc.and_(pc.is_null(served), pc.is_null(new)))
        if pa.types.is_floating(served.type):
            same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(served), pc.is_nan(new)), False))
        return list(pc.indices_nonzero(pc.invert(same)).to_pylist())
    except pa.ArrowNotImplementedError:  # lists, structs, maps
        pairs = enumerate(zip(served.to_pylist(), new.to_pylist(), strict=True))
        return [i for i, (a, b) in pairs if not _same(a, b)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def unequal_columns(served: pa.RecordBatch, new: pa.RecordBatch) -> dict[str, list[int]]:
    """Column -> rows that differ, for batches of the same schema, among the rows that both have."""
    rows = min(served.num_rows, new.num_rows)
    found = {f.name: unequal(served.column(i).slice(0, rows), new.column(i).slice(0, rows)) for i, f in enumerate(served.schema)}
    return {name: differing for name, differing in found.items() if differing}


def row(batch: pa.RecordBatch | None, i: int) -> dict[str, Any] | None:
    """One row in readable form, with values that JSON can hold; None if there is no such row."""
    if batch is None or i >= batch.num_rows:
        return None
    return {f.name: _plain(batch.column(k)[i]) for k, f in enumerate(batch.schema)}


def _plain(scalar: pa.Scalar) -> Any:
    try:
        value = scalar.as_py()
    except ValueError:  # nanoseconds need pandas
        return str(scalar)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "…"
