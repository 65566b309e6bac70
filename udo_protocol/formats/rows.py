"""Columns as Python objects: the form in which user code gets events, on either side of an operator."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def as_events(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each row as a dict. ValueError, OverflowError or ArrowInvalid for a value that Python cannot hold, e.g. a map with duplicate keys."""
    if not any(_has_map(t) for t in batch.schema.types):
        return batch.to_pylist()  # type: ignore[no-any-return]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(as_values, batch.columns), strict=True)]


def as_values(column: pa.Array) -> list[Any]:
    """A column's values; maps become dicts at every level."""
    found: list[Any] = column.to_pylist()
    return [_dicts(value, column.type) for value in found] if _has_map(column.type) else found


def _dicts(value: Any, t: pa.DataType) -> Any:
    """A value from `to_pylist`, with its maps as dicts."""
    if value is None or not pa.types.is_nested(t):
        return value
    if pa.types.is_struct(t):
        return {f.name: _dicts(value[f.name], f.type) for f in t.fields}
    if not pa.types.is_map(t):
        return [_dicts(v, t.value_type) for v in value]
    found = {_dicts(k, t.key_type): _dicts(v, t.item_type) for k, v in value}
    if len(found) < len(value):
        raise ValueError(f"a map has a key twice: {value!r:.200}")
    return found


def named(value: Any, t: pa.DataType) -> Any:
    """A value for a column of type `t`, with structs matched by the names of their fields, as in Spark's Rows, not by their order.

    KeyError names a field that a struct lacks; fields that the type does not have are left out.
    """
    if value is None or not pa.types.is_nested(t):
        return value
    if pa.types.is_struct(t):
        if hasattr(value, "__fields__"):
            value = dict(zip(value.__fields__, value, strict=False))
        if not isinstance(value, dict):
            return value
        return {f.name: named(value[f.name], f.type) for f in t.fields}
    if pa.types.is_map(t):
        pairs = value.items() if isinstance(value, dict) else value
        return [(named(k, t.key_type), named(v, t.item_type)) for k, v in pairs]
    return [named(v, t.value_type) for v in value]


def has_struct(t: pa.DataType) -> bool:
    """Whether the type is or contains a struct."""
    if pa.types.is_map(t):
        return has_struct(t.key_type) or has_struct(t.item_type)
    return pa.types.is_struct(t) or any(has_struct(t.field(i).type) for i in range(t.num_fields))


def _has_map(t: pa.DataType) -> bool:
    return pa.types.is_map(t) or (pa.types.is_nested(t) and any(_has_map(t.field(i).type) for i in range(t.num_fields)))
