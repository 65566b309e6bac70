"""An instance that answers the same frames as the owner and compares: it never writes an answer and never becomes owner.

The owner's emits leave copies of their answers in `diffed` while `diff` names this instance; a pin keeps the frames they
answer in the log. What is lost because this instance is slower is counted, never waited for. For keyed operators see
comparing_keyed.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from udo_protocol.connection import Connection
from udo_protocol.errors import Fenced, ProtocolError, UdoError, Unavailable
from udo_protocol.frame import DATA, ERROR, SKIPPED, Frame, decode
from udo_protocol.schema import conform, misfits
from udo_runtime.differences import row, unequal_columns
from udo_runtime.failure import ProcessingError
from udo_runtime.instance import Instance

_log = logging.getLogger("udo_runtime")
# How soon the end of the diff is noticed, and a report is renewed.
_LOOK_S = 0.25
_REPORT_MS = 60_000
_BEGIN_S = 30
# Longer than the answer to any frame as a rule; when it runs out, frames are lost to the diff and counted.
_PIN_MS = 30_000


@dataclass
class Findings:
    """What has been compared so far. Counts of frames, unless rows are named."""

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


class Comparing(Instance):
    """See the module. `examples` is how many differing rows (or frames) are told in full."""

    examples = 0

    def serve(self) -> None:
        """Compare until the diff is over: `diff` names this instance no more."""
        self.found = Findings()
        self._columns: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()
        self._told: list[str] = []
        self._report_due = 0.0
        try:
            super().serve()
            self.found.ended = True
        except Fenced as e:
            self.found.left = str(e)
            raise
        finally:
            # A connection of its own: on the loop's one, replies may still be to come.
            with suppress(UdoError), closing(Connection(self._conn.path, login=self._conn.login)) as conn:
                self._publish(conn)
                conn.call("FCALL", "udo_pin", 1, self._reader.prefix, self._reader.name, 0, 0)

    def _key(self, name: str) -> str:
        return f"{self._reader.prefix}{name}"

    def _shadow(self) -> int:
        """Wait for the node manager to begin the diff; it pins the log in the same step, and the first copy tells where to begin."""
        waited_until = time.monotonic() + _BEGIN_S
        while not self._on(self._conn.call("GET", self._key("diff"))):
            if time.monotonic() > waited_until:
                raise Unavailable(f"the diff of {self._reference} did not begin within {_BEGIN_S} s")
            with self._parking():
                time.sleep(_LOOK_S / 10)
        return 0

    def _on(self, diff: Any) -> bool:
        """Whether `diff` names this instance."""
        return diff is not None and bytes(diff).split()[-1].decode() == self._reader.name

    def _step(self, cursor: int) -> int:
        with self._parking():
            copy = self._conn.call("BLPOP", self._key("diffed"), f"{_LOOK_S}")
        if copy is None:
            self._look(cursor, self._conn.call("GET", self._key("diff")))
            return cursor
        first, last, count, size = (int(n) for n in bytes(copy[1]).split())
        answers, _, diff = self._conn.transaction(
            [("LPOP", self._key("diffed"), count), ("DECRBY", self._key("diffbytes"), size), ("GET", self._key("diff"))]
        )
        if cursor and first > cursor:
            self.found.missed += first - cursor
        served = _by_number(answers or ())
        seq = first
        while seq <= last:
            # No more than is compared now: what lies behind would be read once more for each of these.
            self._reader.limits = replace(self._limits, read_frames=last + 1 - seq)
            read = self._reader.read(seq)
            if read.first > last or not read.frames:
                break
            self.found.missed += read.first - seq
            frames = read.frames[: last - read.first + 1]
            for at, data in enumerate(frames, read.first):
                self._look_at(at, data, served)
                self.found.seen += 1
                self._renew(at)
            seq = read.first + len(frames)
        self.found.missed += last + 1 - seq
        self._look(last + 1, diff)
        return last + 1

    def _look(self, cursor: int, diff: Any) -> None:
        """Leave once the diff is over and what it kept is compared; renew what is leased."""
        if not self._on(diff) and not self._conn.call("EXISTS", self._key("diffed")):
            self.stopping = True
        self._reader.pin(self._needed_from(cursor), _PIN_MS)
        self._renew(cursor)
        self._housekeeping()

    def _renew(self, cursor: int) -> None:
        """Now and then: what is leased, and the report."""
        if time.monotonic() >= self._report_due:
            self._report_due = time.monotonic() + _LOOK_S
            self._reader.pin(self._needed_from(cursor), _PIN_MS)
            self._publish(self._conn)

    def _needed_from(self, cursor: int) -> int:
        """The first frame that may be read again."""
        return max(cursor, 1)

    def _publish(self, conn: Connection) -> None:
        self.found.columns, self.found.served_by = dict(self._columns), dict(self._versions)
        self.found.looks += 1
        stats = self._stats.values()
        counted = {"events": stats["events_in"], "answered": stats["frames"], "p50_ms": stats["p50_ms"], "p99_ms": stats["p99_ms"]}
        report = json.dumps({**asdict(self.found), **counted})
        commands: list[Any] = [("SET", self._key(f"compared:{self._reader.name}"), report, "PX", _REPORT_MS)]
        commands += [("PEXPIRE", self._key(name), _REPORT_MS) for name in ("diffed", "diffbytes")]
        if self._told:
            key = self._key(f"differ:{self._reader.name}")
            commands += [("RPUSH", key, *self._told), ("PEXPIRE", key, _REPORT_MS)]
            self._told = []
        conn.transaction(commands)

    def _look_at(self, seq: int, data: bytes | bytearray, served: dict[tuple[str, int], Frame]) -> None:
        try:
            frame = decode(data)
        except ProtocolError:
            self.found.not_compared += 1
            return
        answer = served.get((frame.header.lane, frame.header.number))
        if answer is None or frame.header.kind != DATA or answer.header.kind == SKIPPED:
            self.found.not_compared += 1
            return
        try:
            theirs = self._served(answer)
        except ProtocolError:  # its caller gets this error, too
            self.found.not_compared += 1
            return
        self.found.frames += 1
        self._versions[answer.header.version] += 1
        batch: pa.RecordBatch | None = None
        try:
            batch = self._batch(frame)
            new = self._new_answer(batch)
        except (ProcessingError, ProtocolError) as e:
            self._failed_on(frame, batch, theirs, e)
            return
        if theirs is None:
            self.found.errors_served += 1
            self._differs(frame, batch, None, new, 0, [], f"the serving version failed: {answer.header.failure.message}")
            self.found.different += 1
            return
        self._compare(frame, batch, theirs, new)

    def _served(self, answer: Frame) -> pa.RecordBatch | None:
        """What the serving version answered; None if it failed."""
        return None if answer.header.kind == ERROR else answer.batch(self._schema(answer.header.schema))

    def _new_answer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if problems := misfits(batch.schema, self._input):
            raise ProtocolError("the frame does not fit the operator's input schema: " + "; ".join(problems))
        events = conform(batch, self._input)
        return self._timed(events.num_rows, lambda: self._process.named(events))

    def _failed_on(
        self, frame: Frame, batch: pa.RecordBatch | None, served: pa.RecordBatch | None, e: ProcessingError | ProtocolError
    ) -> None:
        self._stats.errors += 1
        event = self._note_error(e)
        if served is None:  # both fail: what they say of it is not compared
            self.found.errors_served += 1
            self.found.equal += 1
            return
        self.found.different += 1
        self.found.rows += served.num_rows
        one = batch is not None and batch.num_rows == served.num_rows == 1
        self._differs(frame, batch if one else None, served if one else None, None, 0, [], f"the new version failed: {e}", event)

    def _note_error(self, e: ProcessingError | ProtocolError) -> str:
        """The new version failed on a frame; the event it named."""
        self.found.errors_new += 1
        traceback, event = (e.traceback, e.event) if isinstance(e, ProcessingError) else ("", "")
        if self.found.first_error is None:
            self.found.first_error = {"message": str(e), "traceback": traceback, "event": event}
            _log.error("the first error of %s: %s\n%s", self._reference, e, traceback)  # nobody else gets it as an answer
        return event

    def _compare(self, frame: Frame, batch: pa.RecordBatch, served: pa.RecordBatch, new: pa.RecordBatch) -> None:
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
        for i in rows[: max(self.examples - self.found.examples, 0)]:
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
        if self.found.examples >= self.examples:
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
        self._told.append(json.dumps(said, ensure_ascii=False, default=str))


def _by_number(answers: Iterable[bytes | bytearray]) -> dict[tuple[str, int], Frame]:
    found = {}
    for data in answers:
        with suppress(ProtocolError):
            frame = decode(data)
            found[frame.header.lane, frame.header.number] = frame
    return found


def _parsed(event: str) -> Any:
    try:
        return json.loads(event) if event else None
    except ValueError:  # cut off
        return event
