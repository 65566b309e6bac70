"""Arrow schemas as text in manifests and as ids in frames, and the rule for when one fits another.

A manifest writes a column as `name: type` with Arrow's own type names: `int64`, `timestamp[us]`, `decimal128(10, 2)`,
`list<string>`, `struct<a: int64, b: string>`, `map<string, int64>`. A trailing `?` is not needed: columns are nullable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate

import pyarrow as pa

from udo_protocol.errors import ProtocolError, SchemaError
from udo_protocol.formats.body import not_carried, read_schema

# The additional column in which keyed events carry their key group (int32).
GROUP_COLUMN = "__udo_group"
# The deepest nesting of lists, structs and maps: Arrow's own readers give up at 64.
TYPE_DEPTH = 60
_SIMPLE = re.compile(r"^[a-z0-9_]+(\[[^\]]*\])?$")
_DECIMAL = re.compile(r"^decimal(?:128)?\(\s*(\d+)\s*,\s*(-?\d+)\s*\)$")
_TIMESTAMP = re.compile(r"^timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]$")


def _split(text: str) -> list[str]:
    """Split at commas outside of any bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "<([" and 1 or (c in ">)]" and -1 or 0)
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p.strip() for p in [*parts, text[start:]]]


def parse_type(text: str) -> pa.DataType:
    """The Arrow type that the text names; SchemaError names the part that is not understood."""
    if max(accumulate((c == "<") - (c == ">") for c in text), default=0) > TYPE_DEPTH:
        raise SchemaError(f"column type {text[:40]!r}... is nested deeper than {TYPE_DEPTH} types")
    t = text.strip()
    if m := _DECIMAL.match(t):
        return pa.decimal128(int(m[1]), int(m[2]))
    if m := _TIMESTAMP.match(t):
        return pa.timestamp(m[1], tz=m[2])
    if t.startswith("list<") and t.endswith(">"):
        return pa.list_(parse_type(t[5:-1].removeprefix("item:").removeprefix("element:")))
    if t.startswith("struct<") and t.endswith(">"):
        return pa.struct([_parse_field(p) for p in _split(t[7:-1])])
    if t.startswith("map<") and t.endswith(">"):
        pair = _split(t[4:-1])
        if len(pair) == 2:
            return pa.map_(parse_type(pair[0]), parse_type(pair[1]))
    if _SIMPLE.match(t):
        with suppress(ValueError):
            if not not_carried(found := pa.type_for_alias(t)):
                return found
    raise SchemaError(
        f"unknown column type {text!r:.200}; expected an Arrow type name such as int64, double, string, timestamp[us], list<int64>"
    )


def is_key_type(t: pa.DataType) -> bool:
    """Whether values of the type can be keys: equality of two values is the same in every language, and works for lookups."""
    kinds = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(is_one(t) for is_one in kinds)


def _parse_field(text: str) -> pa.Field:
    name, sep, typ = text.partition(":")
    if not sep:
        raise SchemaError(f"expected 'name: type', got {text!r}")
    return pa.field(name.strip(), parse_type(typ))


def parse_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of a manifest's `{column: type}` table, in its order."""
    return pa.schema([pa.field(n, parse_type(t)) for n, t in columns.items()])


def type_text(t: pa.DataType) -> str:
    """The textual form that parse_type reads back."""
    if pa.types.is_timestamp(t):
        return f"timestamp[{t.unit}, tz={t.tz}]" if t.tz else f"timestamp[{t.unit}]"
    if pa.types.is_list(t):
        return f"list<{type_text(t.value_type)}>"
    if pa.types.is_struct(t):
        return "struct<" + ", ".join(f"{f.name}: {type_text(f.type)}" for f in t.fields) + ">"
    if pa.types.is_map(t):
        return f"map<{type_text(t.key_type)}, {type_text(t.item_type)}>"
    return str(t)


def schema_text(schema: pa.Schema) -> dict[str, str]:
    """The manifest's `{column: type}` table of an Arrow schema."""
    return {f.name: type_text(f.type) for f in schema}


def to_ipc(schema: pa.Schema) -> bytes:
    """The schema as an Arrow IPC schema message, without metadata."""
    return bytes(schema.remove_metadata().serialize())


def from_ipc(data: bytes) -> pa.Schema:
    """Inverse of to_ipc. ProtocolError for bytes that are not a schema, and for types that frames do not carry."""
    return read_schema(data)


def schema_id(ipc: bytes) -> bytes:
    """8-byte id of a serialised schema, carried by every frame."""
    return hashlib.blake2b(ipc, digest_size=8).digest()


_INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_UINTS = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
_FLOATS = {pa.float16(): (16, 11), pa.float32(): (32, 24), pa.float64(): (64, 53)}
_TIME = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of `have` is a value of `want` (int16 -> int64, float -> double ...)."""
    if have == want or pa.types.is_null(have):
        return True
    if have in _INTS and want in _INTS:
        return _INTS[have] <= _INTS[want]
    if have in _UINTS:
        return (want in _UINTS and _UINTS[have] <= _UINTS[want]) or (want in _INTS and _UINTS[have] < _INTS[want])
    if have in _INTS and want in _FLOATS:
        return _INTS[have] <= _FLOATS[want][1]
    if have in _FLOATS and want in _FLOATS:
        return _FLOATS[have][0] <= _FLOATS[want][0]
    if pa.types.is_string(have) and pa.types.is_large_string(want) or pa.types.is_binary(have) and pa.types.is_large_binary(want):
        return True
    if pa.types.is_large_string(have) and pa.types.is_string(want):
        return True
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        return bool(have.tz == want.tz) and _TIME[have.unit] <= _TIME[want.unit]
    if pa.types.is_decimal(have) and pa.types.is_decimal(want):
        return bool(have.scale <= want.scale) and have.precision - have.scale <= want.precision - want.scale
    if pa.types.is_list(have) and pa.types.is_list(want):
        return widens(have.value_type, want.value_type)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return widens(have.key_type, want.key_type) and widens(have.item_type, want.item_type)
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        mine = {f.name: f.type for f in have.fields}
        return set(mine) == {f.name for f in want.fields} and all(widens(mine[f.name], f.type) for f in want.fields)
    return False


def misfits(have: pa.Schema, want: pa.Schema) -> list[str]:
    """Why columns of `have` cannot serve as `want` (matched by name, safely widened); empty if they can."""
    if have.equals(want):  # the fast path: called once per frame
        return []
    problems = []
    for f in want:
        i = have.get_field_index(f.name)
        if i < 0:
            near = ", ".join(have.names) or "no columns"
            problems.append(f"column {f.name!r} ({type_text(f.type)}) is missing; there are: {near}")
        elif not widens(have.field(i).type, f.type):
            problems.append(f"column {f.name!r}: expected {type_text(f.type)}, got {type_text(have.field(i).type)}")
    return problems


def require_fit(have: pa.Schema, want: pa.Schema, what: str, remedy: str) -> None:
    """Raise SchemaError if there are misfits: `what`, each of them, then the `remedy`."""
    if problems := misfits(have, want):
        raise SchemaError(f"{what}: " + "; ".join(problems) + f". {remedy}")


def update_misfits(old_in: pa.Schema, old_out: pa.Schema, new_in: pa.Schema, new_out: pa.Schema) -> list[str]:
    """Why a running query built for the old version could not continue with the new one; empty if it can.

    The query's events (old input) must serve as new input, and the new version's answers as old output.
    """
    return [f"input: {p}" for p in misfits(old_in, new_in)] + [f"output: {p}" for p in misfits(new_out, old_out)]


def conform(batch: pa.RecordBatch, want: pa.Schema) -> pa.RecordBatch:
    """Select and widen the columns of `batch` to `want`, by name; the same object if nothing has to change. ProtocolError for a time
    outside of the range of the wanted unit."""
    if batch.schema.equals(want, check_metadata=False):
        return batch
    picked = batch.select(want.names)
    if picked.schema.equals(want, check_metadata=False):  # called once per frame
        return picked
    return pa.RecordBatch.from_arrays([_widened(batch.column(f.name), f) for f in want], schema=want)


def _widened(column: pa.Array, want: pa.Field) -> pa.Array:
    if column.type == want.type:
        return column
    try:
        return column.cast(want.type)
    except pa.ArrowInvalid as e:
        expected, came = type_text(want.type), type_text(column.type)
        years = " (the years 1678 to 2261)" if "timestamp[ns" in expected else ""
        raise ProtocolError(f"column {want.name!r}: expected {expected}{years}, got a value of {came} that is outside of it: {e}") from e
