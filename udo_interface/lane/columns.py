"""Batches between Spark's form and the operator's: columns picked by name, retyped only where the types differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import SchemaError


class Picker:
    """Turns batches of one schema into batches of `want`; the conversions are worked out on the first batch."""

    def __init__(self, want: pa.Schema, what: str) -> None:
        self._want, self._what = want, what
        self._types = [f.type for f in want]
        self._have: pa.Schema | None = None
        self._plan: list[tuple[int, pa.DataType | None]] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; the same object if nothing has to change. SchemaError names the column that cannot be converted."""
        if batch.schema is not self._have and batch.schema != self._have:
            self._learn(batch.schema)
        if self._plan is None:
            return batch
        return pa.RecordBatch.from_arrays([self._column(batch, i, to) for i, to in self._plan], schema=self._want)

    def _learn(self, have: pa.Schema) -> None:
        self._have = have
        self._plan = [(have.get_field_index(f.name), None if have.field(f.name).type == f.type else f.type) for f in self._want]
        # A record batch message carries no names and no nullability: equal types in equal order need no new batch.
        if have.names == self._want.names and have.types == self._types:
            self._plan = None

    def _column(self, batch: pa.RecordBatch, i: int, to: pa.DataType | None) -> pa.Array:
        column = batch.column(i)
        if to is None:
            return column
        try:
            # Times finer than Spark's microseconds are cut; all else must fit: a year outside the range of nanoseconds is an error.
            return column.cast(options=pc.CastOptions(to, allow_time_truncate=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise SchemaError(f"{self._what}: column {batch.schema.field(i).name!r} of type {column.type} cannot become {to}: {e}") from e


def beside(answer: pa.RecordBatch, batch: pa.RecordBatch, names: Sequence[str], never_null: Collection[str]) -> pa.RecordBatch:
    """The answer followed by these columns of `batch` as Spark gave them, with their fields' metadata. A partition's marks make
    columns nullable on their way; those in `never_null` become non-nullable again."""
    fields = [batch.schema.field(n).with_nullable(n not in never_null) for n in names]
    return pa.RecordBatch.from_arrays([*answer.columns, *map(batch.column, names)], schema=pa.schema([*answer.schema, *fields]))
