"""Sample events from a file: JSON (array or lines), CSV or parquet, as batches of an operator's input schema.

Text formats carry few types, so their values are converted if nothing is lost; parquet is judged as Spark's columns are.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from udo_protocol.errors import NotFound, SchemaError, UsageError
from udo_protocol.formats.schema import misfits, require_fit, type_text


def read(path: Path, schema: pa.Schema, batch_rows: int) -> list[pa.RecordBatch]:
    """The events of `path` in `schema`; SchemaError lists every column that does not fit and what came."""
    try:
        table = _READERS[path.suffix.lower()](path, schema)
    except KeyError:
        raise UsageError(f"{path}: expected a .json, .jsonl, .csv or .parquet file") from None
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (pa.ArrowInvalid, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    return list(table.combine_chunks().to_batches(max_chunksize=batch_rows))


def _json(path: Path, schema: pa.Schema) -> pa.Table:
    text = path.read_text("utf-8")
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    if wrong := next((i for i, row in enumerate(rows) if not isinstance(row, dict)), None):
        raise UsageError(f"{path}: event {wrong + 1} is not an object")
    names = {name for row in rows for name in row}
    _require_columns(names, schema, path)
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns.append(_cast(pa.array(values), field, path))
    return pa.Table.from_arrays(columns, schema=schema)


def _csv(path: Path, schema: pa.Schema) -> pa.Table:
    with pyarrow.csv.open_csv(path) as reader:
        names = set(reader.schema.names)
    _require_columns(names, schema, path)
    text = {f.name: pa.string() for f in schema}  # no guessing: "007" stays what it is until the schema says
    options = pyarrow.csv.ConvertOptions(column_types=text, include_columns=schema.names, strings_can_be_null=True)
    table = pyarrow.csv.read_csv(path, convert_options=options)
    return pa.Table.from_arrays([_cast(table.column(f.name), f, path) for f in schema], schema=schema)


def _parquet(path: Path, schema: pa.Schema) -> pa.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        require_fit(file.schema_arrow, schema, str(path), "Change the sample or `input` in operator.toml.")
        return file.read(columns=schema.names).select(schema.names).cast(schema)


def _require_columns(names: set[str], schema: pa.Schema, path: Path) -> None:
    have = pa.schema([pa.field(n, schema.field(n).type if n in schema.names else pa.null()) for n in sorted(names)])
    if problems := misfits(have, schema):
        raise SchemaError(f"{path}: " + "; ".join(problems) + ". Change the sample or `input` in operator.toml.")


def _cast(values: pa.Array | pa.ChunkedArray, field: pa.Field, path: Path) -> pa.Array | pa.ChunkedArray:
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"{path}: column {field.name!r}: expected {type_text(field.type)}, got {type_text(values.type)}: {e}") from e


_READERS = {".json": _json, ".jsonl": _json, ".ndjson": _json, ".csv": _csv, ".parquet": _parquet}
