"""The demo's input: payments from the generator or a file, as ordered parquet chunks that become micro-batches.

Column names of a given file are mapped; the rows are sorted by time if they are not, and get their row number as id.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from udo_protocol.errors import NotFound, SchemaError, UsageError
from udo_protocol.formats.schema import type_text

SCHEMA = pa.schema(
    [
        ("tx_id", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("card_id", pa.int64()),
        ("terminal_id", pa.int64()),
        ("amount", pa.float64()),
        ("is_fraud", pa.bool_()),
    ]
)
# Names by which each column is found in a file.
ALIASES = {
    "timestamp": ("timestamp", "tx_datetime", "event_time", "time", "ts"),
    "card_id": ("card_id", "cardid", "customer_id", "card", "cc_num"),
    "terminal_id": ("terminal_id", "terminalid", "terminal", "merchant_id", "merchant"),
    "amount": ("amount", "tx_amount", "amt"),
    "is_fraud": ("is_fraud", "isfraud", "tx_fraud", "fraud", "label"),
}
# Files per micro-batch, one for each of Spark's two cores: two tasks, in both of which the order is checked.
FILES_PER_BATCH = 2
LEAST_BATCHES = 20


def read(path: Path, rows: int | None) -> pa.Table:
    """The first `rows` payments of a parquet or CSV file in SCHEMA; SchemaError names the column that was not found."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            table = pq.read_table(path)
        elif path.suffix.lower() == ".csv":
            table = pyarrow.csv.read_csv(path)
        else:
            raise UsageError(f"{path}: expected a .parquet or .csv file")
    except (pa.ArrowInvalid, OSError) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    return mapped(table.slice(0, rows), str(path))


def mapped(table: pa.Table, where: str) -> pa.Table:
    """`table` in SCHEMA: columns by name or alias, tx_id = number of the row, sorted by time if it is not."""
    if not table.num_rows:
        raise UsageError(f"{where} holds no rows")
    there = {name.lower(): name for name in table.column_names}
    columns = []
    for field in list(SCHEMA)[1:]:
        name = next((there[a] for a in ALIASES[field.name] if a in there), None)
        if name is None:
            raise SchemaError(
                f"{where}: no column for {field.name!r} (one of {', '.join(ALIASES[field.name])}); there are: {', '.join(there.values())}"
            )
        columns.append(_converted(table.column(name), field, name, where))
    times = columns[0].combine_chunks()
    if not pc.all(pc.less_equal(times[:-1], times[1:])).as_py() and len(times) > 1:
        order = pc.sort_indices(times)  # stable: equal times keep the file's order
        columns = [c.take(order) for c in columns]
    return pa.Table.from_arrays([pa.array(np.arange(table.num_rows), pa.int64()), *columns], schema=SCHEMA)


def _converted(values: pa.ChunkedArray, field: pa.Field, name: str, where: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_boolean(field.type) and not pa.types.is_boolean(values.type):
            return pc.not_equal(values, pa.scalar(0, values.type))
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(values.type) and values.type.tz is None:
            return pc.assume_timezone(values.cast(pa.timestamp("us")), "UTC")
        if pa.types.is_integer(field.type) and pa.types.is_string(values.type):
            return values.dictionary_encode().unify_dictionaries().combine_chunks().indices.cast(field.type)  # names become numbers
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"{where}: column {name!r}: expected {type_text(field.type)}, got {type_text(values.type)}: {e}") from e


@dataclass(frozen=True)
class Chunks:
    """The stream as files: `files[k]` holds rows `starts[k]` up to `starts[k + 1]` (or the end)."""

    files: tuple[Path, ...]
    starts: tuple[int, ...]
    rows: int

    @property
    def batches(self) -> int:
        """Number of micro-batches that these files become."""
        return -(-len(self.files) // FILES_PER_BATCH)


def split(table: pa.Table, directory: Path, batch_rows: int) -> Chunks:
    """Write `table` as files of half a micro-batch each; at least LEAST_BATCHES micro-batches."""
    directory.mkdir(parents=True)
    batch_rows = min(batch_rows, max(FILES_PER_BATCH, table.num_rows // LEAST_BATCHES))
    file_rows = max(1, batch_rows // FILES_PER_BATCH)
    starts = tuple(range(0, table.num_rows, file_rows))
    files = tuple(directory / f"{k:06d}.parquet" for k in range(len(starts)))
    for path, start in zip(files, starts, strict=True):
        pq.write_table(table.slice(start, file_rows), path, compression="lz4")
    return Chunks(files, starts, table.num_rows)


class Feeder:
    """Hands chunks to the stream: links them into the folder Spark watches, all at once or at a rate."""

    def __init__(self, chunks: Chunks, landing: Path, rate: float | None) -> None:
        self._chunks, self._landing, self._rate = chunks, landing, rate
        self._fed = 0
        landing.mkdir(parents=True)

    @property
    def done(self) -> bool:
        """Whether everything has been handed over."""
        return self._fed == len(self._chunks.files)

    @property
    def rows(self) -> int:
        """Rows handed over."""
        return self._chunks.rows if self.done else self._chunks.starts[self._fed]

    def feed(self, elapsed_s: float) -> None:
        """Hand over the chunks due `elapsed_s` after the start, whole micro-batches at a time and in order."""
        due = self._chunks.rows if self._rate is None else elapsed_s * self._rate
        while not self.done and self._chunks.starts[self._fed] <= due:
            for path in self._chunks.files[self._fed : self._fed + FILES_PER_BATCH]:
                # Spark takes files in the order of their times: one second apart, so that no file system rounds them to the same time.
                os.utime(path, (1_600_000_000 + self._fed,) * 2)
                os.link(path, self._landing / path.name)
                self._fed += 1
