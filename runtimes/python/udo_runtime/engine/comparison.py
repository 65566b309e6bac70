"""Two versions' answers to the same frames, compared row by row: what differs is counted, some of it told in full."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.schema import conform, misfits
from udo_protocol.queue.frame import Frame
from udo_runtime.engine.differences import row, unequal_columns
from udo_runtime.execution.failure import ProcessingError

_log = logging.getLogger("udo_runtime")


@dataclass
class Findings:
    """Result of a comparison so far: counts of frames, or of rows where the name says so."""

    frames: int = 0  # compared
    equal: int = 0
    different: int = 0
    rows: int = 0  # served, in the frames compared
    rows_different: int = 0
    row_counts_different: int = 0  # frames answered with another number of rows
    columns: dict[str, int] = field(default_factory=dict)  # column -> rows that differ
    errors_served: int = 0
    errors_new: int = 0
    first_error: dict[str, str] | None = None  # of the new version: message, traceback, event
    seen: int = 0  # answered while the diff ran, of any kind
    not_compared: int = 0  # control frames, frames of a lane that had failed, frames whose copy was lost
    missed: int = 0  # this instance was too slow, or what it needed did not fit the bound
    served_by: dict[str, int] = field(default_factory=dict)  # version -> frames
    examples: int = 0
    ended: bool = False
    left: str = ""  # why this instance could not go on, through no fault of the new version
    looks: int = 0  # grows while this instance gets on


class Comparison:
    """Of the version `reference` with the serving one; `examples` is how many differing rows (or frames) are told in full."""

    def __init__(self, reference: str, examples: int) -> None:
        self.found = Findings()
        self.told: list[str] = []  # differences, as JSON; publishing removes them
        self._reference, self._examples = reference, examples
        self._columns: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()

    def findings(self) -> Findings:
        """What has been found so far."""
        self.found.columns, self.found.served_by = dict(self._columns), dict(self._versions)
        return self.found

    def frame(self, served_by: str) -> None:
        """One more frame is compared, which that version has answered."""
        self.found.frames += 1
        self._versions[served_by] += 1

    def served_failed(self, frame: Frame, batch: pa.RecordBatch | None, answer: Frame, new: pa.RecordBatch) -> None:
        """The serving version failed on the frame, the new one did not."""
        self.found.errors_served += 1
        self.found.different += 1
        self._differs(frame, batch, None, new, 0, [], f"the serving version failed: {answer.header.failure.message}")

    def new_failed(
        self,
        frame: Frame,
        batch: pa.RecordBatch | None,
        answer: Frame,
        served: pa.RecordBatch | None,
        e: ProcessingError | ProtocolError,
    ) -> None:
        """The new version failed on the frame; `served`: what the serving one answered, None if it failed, too."""
        event = self.error(e)
        if served is None:  # both fail: what they say of it is not compared
            self.found.errors_served += 1
            self.found.equal += 1
            return
        self.found.different += 1
        self.found.rows += served.num_rows
        one = batch is not None and batch.num_rows == served.num_rows == 1
        self._differs(frame, batch if one else None, served if one else None, None, 0, [], f"the new version failed: {e}", event)

    def error(self, e: ProcessingError | ProtocolError) -> str:
        """Count what the new version failed with; the event it named."""
        self.found.errors_new += 1
        traceback, event = (e.traceback, e.event) if isinstance(e, ProcessingError) else ("", "")
        if self.found.first_error is None:
            self.found.first_error = {"message": str(e), "traceback": traceback, "event": event}
            _log.error("the first error of %s: %s\n%s", self._reference, e, traceback)  # it is not sent as an answer
        return event

    def compare(self, frame: Frame, batch: pa.RecordBatch, served: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Row by row, as the running query would see the new answer: in the columns and types it was planned with."""
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
            self._differs(frame, None, served, new, first, [], why)
            return
        self._columns.update({name: len(differing) for name, differing in columns.items()})
        self.found.rows_different += len(rows)
        for i in rows[: max(self._examples - self.found.examples, 0)]:
            self._differs(frame, batch if one_each else None, served, new, i, [n for n, d in columns.items() if i in d])

    def _differs(
        self,
        frame: Frame,
        batch: pa.RecordBatch | None,
        served: pa.RecordBatch | None,
        new: pa.RecordBatch | None,
        i: int,
        columns: list[str],
        why: str = "",
        event: str = "",
    ) -> None:
        """Tell of it, unless enough is told; the event is known where each one has one answer, or where the operator named it."""
        if self.found.examples >= self._examples:
            return
        self.found.examples += 1
        said = {
            "lane": frame.header.lane,
            "frame": frame.header.number,
            "row": i,
            "columns": columns,
            "why": why,
            "event": row(batch, i) or _parsed(event),
            "served": row(served, i),
            "new": row(new, i),
        }
        self.told.append(json.dumps(said, ensure_ascii=False, default=str))


def _parsed(event: str) -> Any:
    try:
        return json.loads(event) if event else None
    except ValueError:  # cut off
        return event
