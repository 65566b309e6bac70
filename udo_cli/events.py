"""Sample events from a file: JSON (array or lines), CSV or parquet, as batches of an operator's input schema.

Text formats carry few types, so their values are converted if nothing is lost; parquet is judged as Spark's columns are.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from udo_protocol.errors import NotFound, UsageError
from udo_protocol.formats import sample_events
from udo_protocol.formats.schema import require_fit


def read(path: Path, schema: pa.Schema, batch_rows: int) -> list[pa.RecordBatch]:
    """The events of `path` in `schema`; SchemaError lists every column that does not fit, and its actual type."""
    try:
        table = _READERS[path.suffix.lower()](path, schema)
    except KeyError:
        raise UsageError(f"{path}: expected a .json, .jsonl, .csv or .parquet file") from None
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (pa.ArrowInvalid, UnicodeDecodeError) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    return list(table.combine_chunks().to_batches(max_chunksize=batch_rows))


def _json(path: Path, schema: pa.Schema) -> pa.Table:
    return sample_events.from_json(path.read_text("utf-8"), schema, str(path))


def _csv(path: Path, schema: pa.Schema) -> pa.Table:
    with pyarrow.csv.open_csv(path) as reader:
        names = set(reader.schema.names)
    sample_events.require_columns(names, schema, str(path))
    text = {f.name: pa.string() for f in schema}  # no guessing: "007" stays text until it is cast to the schema
    options = pyarrow.csv.ConvertOptions(column_types=text, include_columns=schema.names, strings_can_be_null=True)
    table = pyarrow.csv.read_csv(path, convert_options=options)
    return pa.Table.from_arrays([sample_events.cast(table.column(f.name), f, str(path)) for f in schema], schema=schema)


def _parquet(path: Path, schema: pa.Schema) -> pa.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        require_fit(file.schema_arrow, schema, str(path), sample_events.REMEDY)
        return file.read(columns=schema.names).select(schema.names).cast(schema)


_READERS = {".json": _json, ".jsonl": _json, ".ndjson": _json, ".csv": _csv, ".parquet": _parquet}
