"""Gathers the answers to a frame while its events are processed: rows that become a batch whenever there are many, bounded in total.

As rows of Python, ten million answers take gigabytes; in Arrow, no more than on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa

from udo_protocol.limits import DEFAULT
from udo_runtime.failure import ProcessingError, Row, rows_to_batch

# The most answers held as rows: FIRST at the beginning, when their size is unknown; later as many as take 1/_PARTS of the bound
# in Arrow, 16 MiB by default, but at most _MOST.
FIRST = 256
_MOST, _PARTS = 1 << 15, 16
# Values of these types cannot change after they were answered.
_FIXED = frozenset((type(None), bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta))


def taking(schema: pa.Schema) -> Callable[[Mapping[str, Any]], Row]:
    """The function that takes the values out of an answer with these columns, so that user code may still change the dict: it may be
    yielded again, or be a state. Values that may be changed themselves, in nested and binary columns, are copied."""
    names, held = schema.names, [(n, own) for n, field in enumerate(schema) if (own := _owner(field.type))]
    get: Callable[[Mapping[str, Any]], Row] = itemgetter(*names) if len(names) > 1 else lambda answer: tuple(answer[name] for name in names)
    if not held:
        return get

    def take(answer: Mapping[str, Any]) -> Row:
        values = [*get(answer)]
        for n, own in held:
            values[n] = own(values[n])
        return tuple(values)

    return take


def _owner(t: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that copies the values of a column of this type; None if they cannot be changed."""
    if pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t):
        return _own
    if not pa.types.is_nested(t):
        return None
    return _own_list if (pa.types.is_list(t) or pa.types.is_large_list(t)) and _owner(t.value_type) is None else _own


def _own_list(value: Any) -> Any:
    return tuple(value) if type(value) is list else _own(value)


def _own(value: Any) -> Any:
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list:
        return value.copy() if _FIXED.issuperset(map(type, value)) else [_own(v) for v in value]
    if kind is tuple:
        return tuple(map(_own, value))
    if kind is dict:
        if _FIXED.issuperset(map(type, value.values())):
            return value.copy()
        return {_own(k): _own(v) for k, v in value.items()}
    if isinstance(value, pa.Array | pa.Scalar):
        return value
    try:
        return deepcopy(value)
    except Exception:  # no data: the batch is refused with the column and its type
        return value


class GatheredAnswers(list[Row]):
    """`append` the values of each answer (`taking`), and `pack` when there are FIRST, or as many as `pack` returned last; `batch` returns
    all of them.

    ProcessingError for an answer that does not fit the schema, and if the answers exceed the `bound` bytes that a caller accepts.
    """

    def __init__(self, output: pa.Schema, bound: int = DEFAULT.answer_bytes) -> None:
        super().__init__()
        self._output, self._bound = output, bound
        self._parts: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.room = FIRST  # the most answers to hold as rows

    @property
    def packed(self) -> bool:
        """Whether some answers are in a batch already."""
        return bool(self._parts)

    def pack(self) -> int:
        """Make a batch of the rows; returns the number of rows at which to do it again."""
        if self:
            self.add(rows_to_batch(self, self._output))
            self.clear()
        return self.room

    def add(self, *parts: pa.RecordBatch) -> None:
        """Add answers after those in batches and before those that are rows."""
        for part in parts:
            self._parts.append(part)
            self._rows, self._bytes = self._rows + part.num_rows, self._bytes + part.nbytes
            if self._bytes > self._bound:
                raise too_large(self._rows, self._bytes, self._bound)
        if self._rows:
            self.room = min(_MOST, max(1, self._bound // _PARTS * self._rows // max(1, self._bytes)))

    def follow(self, more: GatheredAnswers) -> None:
        """Append the answers of `more`."""
        if more.packed:
            self.pack()
            self.add(*more._parts)
        self.extend(more)
        if len(self) >= self.room:
            self.pack()

    def batch(self) -> pa.RecordBatch:
        """All answers, in order."""
        if not self._parts:
            return rows_to_batch(self, self._output)
        self.pack()
        return joined(self._parts, self._output)


def too_large(rows: int, size: int, bound: int, states: int = 0) -> ProcessingError:
    """The error for an answer so large that collectors refuse it. `states`: the number of states that `size` includes."""
    what = f"{rows} events and {states} states" if states else f"{rows} events"
    return ProcessingError(
        f"the answer to one frame has {what} of {size} bytes; the bound is {bound}: return less per event, or send fewer events at a time"
    )


def joined(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Record batches of one schema as one."""
    table = pa.Table.from_batches(list(parts), schema).combine_chunks()
    return next(iter(table.to_batches()), None) or empty(schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
