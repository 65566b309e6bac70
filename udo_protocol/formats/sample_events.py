"""Reads sample events from JSON (an array, or one object per line) into a table of an operator's input schema.

JSON has few types, so its values are converted if nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

from udo_protocol.errors import SchemaError, UsageError
from udo_protocol.formats.schema import misfits, type_text

# The largest file of events to rehearse with: each instance reads it at its start.
REHEARSED_BYTES = 1 << 20
REMEDY = "Change the sample or `input` in operator.toml."


def from_json(text: str, schema: pa.Schema, where: str) -> pa.Table:
    """The events; UsageError if the JSON is not of that form, SchemaError lists the columns that do not fit. `where` names the file."""
    try:
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{where} cannot be read: {e}") from e
    if (wrong := next((i for i, row in enumerate(rows) if not isinstance(row, dict)), None)) is not None:
        raise UsageError(f"{where}: event {wrong + 1} is not an object")
    require_columns({name for row in rows for name in row}, schema, where)
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns.append(cast(_guessed(values, field, where), field, where))
    return pa.Table.from_arrays(columns, schema=schema)


def rehearsed(data: bytes, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """The events that an operator rehearses with, at least one. UsageError or SchemaError says why there are none."""
    if len(data) > REHEARSED_BYTES:
        raise UsageError(f"{where} has more than {REHEARSED_BYTES >> 20} MiB: a few events are enough to rehearse with")
    try:
        batches = from_json(data.decode(), schema, where).combine_chunks().to_batches()
    except UnicodeDecodeError as e:
        raise UsageError(f"{where} cannot be read: {e}") from e
    if not batches:
        raise UsageError(f"{where} has no events to rehearse with")
    return batches[0]


def require_columns(names: Iterable[str], schema: pa.Schema, where: str) -> None:
    """Raise SchemaError unless all columns of `schema` are among these."""
    have = pa.schema([pa.field(n, schema.field(n).type if n in schema.names else pa.null()) for n in sorted(names)])
    if problems := misfits(have, schema):
        raise SchemaError(f"{where}: " + "; ".join(problems) + f". {REMEDY}")


def cast(values: pa.Array | pa.ChunkedArray, field: pa.Field, where: str) -> pa.Array | pa.ChunkedArray:
    """Convert the values to the column's type; SchemaError if something would be lost."""
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"{where}: column {field.name!r}: expected {type_text(field.type)}, got {type_text(values.type)}: {e}") from e


def _guessed(values: list[object], field: pa.Field, where: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as e:
        raise UsageError(f"{where} cannot be read: column {field.name!r}: {e}") from e
