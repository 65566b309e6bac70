"""The answers to a frame while its events are processed: dicts that become a batch whenever there are many, and the bound of all of them.

As dicts, ten million answers take gigabytes; in Arrow, what they take on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from udo_protocol.limits import DEFAULT
from udo_runtime.execution.failure import ProcessingError, rows_to_batch

# How many answers are dicts at most: so few at first, since nobody knows how large they are, later as many as take this part of the
# bound in Arrow, 16 MiB by default.
FIRST = 256
_MOST, _PARTS = 1 << 15, 16


class GatheredAnswers(list[dict[str, Any]]):
    """`append` each, and `settle` where there are FIRST, or as many as it said last; `batch` is all of them.

    ProcessingError for an answer that does not fit the schema, and where they exceed what a caller takes, `bound` bytes.
    """

    def __init__(self, output: pa.Schema, bound: int = DEFAULT.answer_bytes) -> None:
        super().__init__()
        self._output, self._bound = output, bound
        self._parts: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.room = FIRST  # how many are dicts at most

    @property
    def settled(self) -> bool:
        """Whether some are a batch already."""
        return bool(self._parts)

    def settle(self) -> int:
        """Those that are dicts become a batch; with how many to do it again."""
        if self:
            self.add(rows_to_batch(self, self._output))
            self.clear()
        return self.room

    def add(self, *parts: pa.RecordBatch) -> None:
        """More answers, behind those that are a batch and before those that are dicts."""
        for part in parts:
            self._parts.append(part)
            self._rows, self._bytes = self._rows + part.num_rows, self._bytes + part.nbytes
            require_bounded(self._rows, self._bytes, self._bound)
        if self._rows:
            self.room = min(_MOST, max(1, self._bound // _PARTS * self._rows // max(1, self._bytes)))

    def follow(self, more: GatheredAnswers) -> None:
        """`more` behind all that are there."""
        if more.settled:
            self.settle()
            self.add(*more._parts)
        self.extend(more)
        if len(self) >= self.room:
            self.settle()

    def batch(self) -> pa.RecordBatch:
        """All of them, in their order."""
        if not self._parts:
            return rows_to_batch(self, self._output)
        self.settle()
        return joined(self._parts, self._output)


def require_bounded(rows: int, size: int, bound: int = DEFAULT.answer_bytes, states: int = 0) -> None:
    """ProcessingError for an answer of so many bytes that collectors refuse it. `states`: how many of these are among the bytes."""
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
