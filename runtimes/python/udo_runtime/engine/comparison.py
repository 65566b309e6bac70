"""Compares two versions' answers to the same frames row by row; counts the differences, and reports some of them in full."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from udo_protocol.diff_report import Findings, FirstError
from udo_protocol.errors import ProtocolError
from udo_protocol.formats.schema import conform, misfits
from udo_protocol.queue.frame import Frame
from udo_runtime.engine.differences import row, unequal_columns
from udo_runtime.failure import ProcessingError

_log = logging.getLogger("udo_runtime")


@dataclass(frozen=True)
class Difference:
    """A difference of answers to a frame, for people to read. The event is known if each has one answer, or if the operator named it."""

    row: int
    columns: Sequence[str] = ()  # those that differ
    why: str = ""
    event: dict[str, Any] | str | None = None
    served: dict[str, Any] | None = None
    new: dict[str, Any] | None = None


class Comparison:
    """Compares the version `reference` with the serving one; `examples`: how many differing rows (or frames) are reported in full."""

    def __init__(self, reference: str, examples: int) -> None:
        self.found = Findings()
        self.told: list[str] = []  # differences, as JSON; publishing removes them
        self._reference, self._examples = reference, examples
        self._columns: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()

    def findings(self) -> Findings:
        """The findings so far."""
        self.found.columns, self.found.served_by = dict(self._columns), dict(self._versions)
        return self.found

    def frame(self, served_by: str) -> None:
        """Count a compared frame that version `served_by` has answered."""
        self.found.frames += 1
        self._versions[served_by] += 1

    def served_failed(self, frame: Frame, batch: pa.RecordBatch | None, answer: Frame, new: pa.RecordBatch) -> None:
        """Record that the serving version failed on the frame, and the new one did not."""
        self.found.errors_served += 1
        self.found.different += 1
        why = f"the serving version failed: {answer.header.failure.message}"
        self._differs(frame, Difference(0, why=why, event=row(batch, 0), new=row(new, 0)))

    def new_failed(
        self,
        frame: Frame,
        batch: pa.RecordBatch | None,
        answer: Frame,
        served: pa.RecordBatch | None,
        e: ProcessingError | ProtocolError,
    ) -> None:
        """Record that the new version failed on the frame; `served`: the answer of the serving one, None if it failed too."""
        event = self.error(e)
        if served is None:  # both fail: their messages are not compared
            self.found.errors_served += 1
            self.found.equal += 1
            return
        self.found.different += 1
        self.found.rows += served.num_rows
        one = batch is not None and batch.num_rows == served.num_rows == 1
        known = row(batch if one else None, 0) or _parsed(event)
        why = f"the new version failed: {e}"
        self._differs(frame, Difference(0, why=why, event=known, served=row(served if one else None, 0)))

    def error(self, e: ProcessingError | ProtocolError) -> str:
        """Count an error of the new version; returns the event that it names."""
        self.found.errors_new += 1
        traceback, event = (e.traceback, e.event) if isinstance(e, ProcessingError) else ("", "")
        if self.found.first_error is None:
            self.found.first_error = FirstError(str(e), traceback, event)
            _log.error("the first error of %s: %s\n%s", self._reference, e, traceback)  # it is not sent as an answer
        return event

    def compare(self, frame: Frame, batch: pa.RecordBatch, served: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Compare answers row by row, the new one as the running query would see it: in the columns and types it was planned with."""
        if problems := misfits(new.schema, served.schema):
            raise ProtocolError("the new version's answer would not fit the running query: " + "; ".join(problems))
        new = conform(new, served.schema)
        columns = unequal_columns(served, new)
        rows = sorted({i for differing in columns.values() for i in differing})
        beyond = abs(served.num_rows - new.num_rows)
        self.found.rows += served.num_rows
        if not rows and not beyond:
            self.found.equal += 1
            return
        self.found.different += 1
        one_each = batch.num_rows == served.num_rows == new.num_rows
        if beyond:
            self.found.row_counts_different += 1
            self.found.rows_different += beyond
            first = rows[0] if rows else min(served.num_rows, new.num_rows)
            why = f"{batch.num_rows} events: {served.num_rows} rows served, {new.num_rows} rows of the new version"
            self._differs(frame, Difference(first, why=why, served=row(served, first), new=row(new, first)))
            return
        self._columns.update({name: len(differing) for name, differing in columns.items()})
        self.found.rows_different += len(rows)
        for i in rows[: max(self._examples - self.found.examples, 0)]:
            event, unequal = row(batch if one_each else None, i), [n for n, d in columns.items() if i in d]
            self._differs(frame, Difference(i, unequal, event=event, served=row(served, i), new=row(new, i)))

    def _differs(self, frame: Frame, difference: Difference) -> None:
        """Report a difference, unless enough have been reported."""
        if self.found.examples >= self._examples:
            return
        self.found.examples += 1
        said = {"lane": frame.header.lane, "frame": frame.header.number, **asdict(difference)}
        self.told.append(json.dumps(said, ensure_ascii=False, default=str))


def _parsed(event: str) -> Any:
    try:
        return json.loads(event) if event else None
    except ValueError:  # cut off
        return event
