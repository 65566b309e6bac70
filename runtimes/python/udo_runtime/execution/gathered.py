"""Gathers the answers to a frame while its events are processed: dicts that become a batch whenever there are many, bounded in total.

As dicts, ten million answers take gigabytes; in Arrow, no more than on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from udo_protocol.limits import DEFAULT
from udo_runtime.failure import ProcessingError, rows_to_batch

# The most answers held as dicts: FIRST at the beginning, when their size is unknown; later as many as take 1/_PARTS of the bound
# in Arrow, 16 MiB by default, but at most _MOST.
FIRST = 256
_MOST, _PARTS = 1 << 15, 16


class GatheredAnswers(list[dict[str, Any]]):
    """`append` each answer, and `pack` when there are FIRST, or as many as `pack` returned last; `batch` returns all of them.

    ProcessingError for an answer that does not fit the schema, and if the answers exceed what a caller takes, `bound` bytes.
    """

    def __init__(self, output: pa.Schema, bound: int = DEFAULT.answer_bytes) -> None:
        super().__init__()
        self._output, self._bound = output, bound
        self._parts: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.room = FIRST  # the most answers to hold as dicts

    @property
    def packed(self) -> bool:
        """Whether some answers are a batch already."""
        return bool(self._parts)

    def pack(self) -> int:
        """Make a batch of the dicts; returns the number of dicts at which to do it again."""
        if self:
            self.add(rows_to_batch(self, self._output))
            self.clear()
        return self.room

    def add(self, *parts: pa.RecordBatch) -> None:
        """Add answers after those that are a batch and before those that are dicts."""
        for part in parts:
            self._parts.append(part)
            self._rows, self._bytes = self._rows + part.num_rows, self._bytes + part.nbytes
            require_bounded(self._rows, self._bytes, self._bound)
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


def require_bounded(rows: int, size: int, bound: int = DEFAULT.answer_bytes, states: int = 0) -> None:
    """Raise ProcessingError for an answer so large that collectors refuse it. `states`: the number of states that `size` includes."""
    if size > bound:
        what = f"{rows} events and {states} states" if states else f"{rows} events"
        raise ProcessingError(
            f"the answer to one frame has {what} of {size} bytes; the bound is {bound}: "
            "return less per event, or send fewer events at a time"
        )


def joined(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Record batches of one schema as one."""
    table = pa.Table.from_batches(list(parts), schema).combine_chunks()
    return next(iter(table.to_batches()), None) or empty(schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
