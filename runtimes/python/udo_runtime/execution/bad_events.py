"""Treatment of a batch that user code failed on: it is retried, then its bad events are found and left out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from udo_protocol.formats.rows import as_events
from udo_protocol.limits import DEFAULT
from udo_runtime.execution.gathered import too_large
from udo_runtime.failure import ProcessingError

Result = TypeVar("Result")
Work = Callable[[pa.RecordBatch], pa.RecordBatch]
# Raised for values that Python cannot hold.
UNHELD = (ValueError, OverflowError, TypeError, pa.ArrowInvalid)
# The pause before the first retry; that before the n-th is n times as long. Transient failures (a service that restarts) often take this
# long; ten pauses stay far below the answer time-out.
_PAUSE_S = 0.05
# The kept end of a traceback, which contains the cause.
_TRACEBACK_CHARS = 8000


@dataclass(frozen=True)
class BadEvent:
    """One event (or a timer of a keyed operator) that user code failed on."""

    row: int
    error: ProcessingError
    event: str  # JSON
    arrow: bytes = b""
    group: int = 0
    timer: bool = False

    @property
    def traceback(self) -> str:
        """The last 8,000 characters of the operator's own traceback."""
        return self.error.traceback[-_TRACEBACK_CHARS:]


def bad_row(batch: pa.RecordBatch, row: int, error: ProcessingError, group: int = 0) -> BadEvent:
    """That row of a batch as a bad event."""
    one = batch.slice(row, 1)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(one)
    return BadEvent(row, error, as_json(one), sink.getvalue().to_pybytes(), group)


def as_json(one: pa.RecordBatch) -> str:
    """A batch of one row as a JSON object; '' if Python cannot hold one of its values (the Arrow bytes do)."""
    try:
        return json.dumps(as_events(one)[0], default=str, ensure_ascii=False)
    except UNHELD:
        return ""


def again(work: Callable[[], Result], retries: int, error: ProcessingError, note: Callable[[], None]) -> Result:
    """Run `work`, which has failed with `error`, up to `retries` times more, calling `note` before each; raises the last error."""
    for n in range(1, retries + 1):
        note()
        time.sleep(n * _PAUSE_S)
        try:
            return work()
        except ProcessingError as e:
            error = e
    raise error


def bisect(work: Work, batch: pa.RecordBatch, error: ProcessingError, room: int) -> tuple[list[pa.RecordBatch], list[BadEvent]]:
    """The answers to the parts of `batch` without its bad events, in order, and the bad events, found by halving. See `halved`."""
    good, bad = halved(lambda at, rows: work(batch.slice(at, rows)), batch.num_rows, error, room)
    return good, [bad_row(batch, row, e) for row, e in bad]


def halved(
    work: Callable[[int, int], pa.RecordBatch], rows: int, error: ProcessingError, room: int
) -> tuple[list[pa.RecordBatch], list[tuple[int, ProcessingError]]]:
    """The answers to the parts of a batch without its bad events, in order, and the bad events by row.

    `work` gets a part's first row and length; it failed on the whole batch with `error`. With k bad events of n it is called at
    most 2k log2(n) + 2k times; the search ends after room + 1 bad events, a number that shows that there were more than `room`.
    ProcessingError if the answers are larger than a caller accepts.
    """
    good, answered, size = list[pa.RecordBatch](), 0, 0
    bad: list[tuple[int, ProcessingError]] = []
    parts: list[tuple[int, int, ProcessingError | None]] = [(0, rows, error)]  # first row, rows, error if known
    while parts and len(bad) <= room:
        at, rows, known = parts.pop()
        if known is None:
            try:
                answer = work(at, rows)
            except ProcessingError as e:
                known = e
            else:
                # A copy: user code may answer the next part in the same memory.
                good.append(pa.concat_batches([answer, answer.slice(0, 0)]))
                answered, size = answered + answer.num_rows, size + answer.nbytes
                if size > DEFAULT.answer_bytes:
                    raise too_large(answered, size, DEFAULT.answer_bytes)
                continue
        if rows == 0:
            raise known
        if rows == 1:
            bad.append((at, known))
        else:
            half = rows // 2
            parts += [(at + half, rows - half, None), (at, half, None)]
    return good, bad


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any] | ProcessingError]:
    """Each row as a dict, or the error that says why Python cannot hold it."""
    try:
        return list(as_events(batch))
    except UNHELD:
        return [_row(batch.slice(i, 1)) for i in range(batch.num_rows)]


def _row(one: pa.RecordBatch) -> dict[str, Any] | ProcessingError:
    try:
        return as_events(one)[0]
    except UNHELD as e:
        return ProcessingError(f"the event cannot be given to Python: {type(e).__name__}: {e}")
