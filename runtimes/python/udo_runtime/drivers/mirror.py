"""A mirror answers the frames that the owner answers, and compares: it never writes an answer and never becomes owner.

While `mirrors` names this instance, each emit of the owner leaves a copy of its answers in `served:{instance}`; a pin keeps the answered
frames in the log. Frames that are lost because this instance is slower are counted, never waited for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from udo_protocol.errors import Fenced, ProtocolError, Unavailable
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import DATA, ERROR, SKIPPED, Frame, decode
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.perform import Performer
from udo_runtime.engine.comparison import Comparison
from udo_runtime.engine.effects import Execute, run
from udo_runtime.engine.stateless_engine import fitting
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError

# The longest time until the end of the diff is noticed, and between reports.
_LOOK_S = 0.25
_REPORT_MS = 60_000
_BEGIN_S = 30
# Usually longer than it takes to answer any frame; when it runs out, frames are lost to the diff and counted.
_PIN_MS = 30_000
# The owner's answers, by (lane, number).
Served = Mapping[tuple[str, int], Frame]


class Comparer(Protocol):
    """Answers a frame as the new version does and compares."""

    def compare(self, seq: int, data: bytes | bytearray, served: Served) -> bool:
        """Answer and compare the frame; False if it cannot be compared."""

    def needed_from(self, cursor: int) -> int:
        """The first frame that may be read again."""


class StatelessComparer:
    """Compares the frames of a stateless operator, each by itself."""

    def __init__(self, processor: Processor, schema: Any, perform: Performer, comparison: Comparison) -> None:
        self._process, self._input, self._perform, self._comparison = processor, schema, perform, comparison

    def needed_from(self, cursor: int) -> int:
        """See Comparer."""
        return max(cursor, 1)

    def compare(self, seq: int, data: bytes | bytearray, served: Served) -> bool:
        """See Comparer."""
        frame, comparison = decode(data), self._comparison
        answer = served.get((frame.header.lane, frame.header.number))
        if answer is None or frame.header.kind != DATA or answer.header.kind == SKIPPED:
            return False
        try:
            theirs = None if answer.header.kind == ERROR else answer.batch(self._perform.schema(answer.header.schema))
        except ProtocolError:  # the frame's sender gets this error too
            return False
        comparison.frame(answer.header.version)
        batch = None
        try:
            batch = run(fitting(frame, self._input, text=not self._process.by_event), self._perform)
            events = batch
            new = self._perform(Execute(events.num_rows, lambda: self._process.named(events)))
        except (ProcessingError, ProtocolError) as e:
            comparison.new_failed(frame, batch, answer, theirs, e)
            return True
        if theirs is None:
            comparison.served_failed(frame, batch, answer, new)
        else:
            comparison.compare(frame, batch, theirs, new)
        return True


class Mirror:
    """The driver of a comparing instance."""

    def __init__(self, link: Link, comparer: Comparer, comparison: Comparison, reference: str) -> None:
        self._link, self._comparer, self._comparison, self._reference = link, comparer, comparison, reference
        self._report_due = 0.0
        keys, me = link.keys, link.name
        self._mirrors, self._served, self._served_bytes = keys.mirrors, keys.served(me), keys.served_bytes(me)

    def run(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Compare until `mirrors` no longer names this instance."""
        found = self._comparison.found
        with self._link.leaving(self._leave):
            try:
                prepare()
                self._await_begin()
                cursor = 0
                while not self._link.stopping:
                    cursor = self._step(cursor)
                found.ended = True
            except Fenced as e:
                found.left = str(e)
                raise

    def _leave(self, conn: Connection) -> None:
        self._publish(conn)
        conn.call("FCALL", "udo_pin", 1, self._link.keys.prefix, self._link.name, 0, 0)

    def _await_begin(self) -> None:
        """Wait for the node manager to begin the diff; it pins the log in the same step, and the first copy shows where to begin."""
        waited_until = time.monotonic() + _BEGIN_S
        while not self._on(self._link.conn.call("GET", self._mirrors)):
            if time.monotonic() > waited_until:
                raise Unavailable(f"the diff of {self._reference} did not start within {_BEGIN_S} s")
            with self._link.parking():
                time.sleep(_LOOK_S / 10)

    def _on(self, mirrors: Any) -> bool:
        """Whether `mirrors` names this instance."""
        return mirrors is not None and self._link.name.encode() in bytes(mirrors).split()[::3]

    def _step(self, cursor: int) -> int:
        conn, reader, found = self._link.conn, self._link.reader, self._comparison.found
        with self._link.parking():
            copy = conn.call("BLPOP", self._served, f"{_LOOK_S}")
        if copy is None:
            self._look(cursor, conn.call("GET", self._mirrors))
            return cursor
        first, last, count, size = (int(n) for n in bytes(copy[1]).split())
        answers, _, mirrors = conn.transaction(
            [("LPOP", self._served, count), ("DECRBY", self._served_bytes, size), ("GET", self._mirrors)]
        )
        if cursor and first > cursor:
            found.missed += first - cursor
        served = _by_number(answers or ())
        seq = first
        while seq <= last:
            # Read only the frames that are compared now: later ones would be read again for each of these.
            reader.limits = replace(self._link.limits, read_frames=last + 1 - seq)
            read = reader.read(seq)
            if read.first > last or not read.frames:
                break
            found.missed += read.first - seq
            frames = read.frames[: last - read.first + 1]
            for at, data in enumerate(frames, read.first):
                if not self._judged(at, data, served):
                    found.not_compared += 1
                found.seen += 1
                self.renew(at)
            seq = read.first + len(frames)
        found.missed += last + 1 - seq
        self._look(last + 1, mirrors)
        return last + 1

    def _judged(self, seq: int, data: bytes | bytearray, served: Served) -> bool:
        try:
            decode(data)
        except ProtocolError:
            return False
        return self._comparer.compare(seq, data, served)

    def _look(self, cursor: int, mirrors: Any) -> None:
        """Stop once the diff is over and all copies are compared; renew the leases."""
        if not self._on(mirrors) and not self._link.conn.call("EXISTS", self._served):
            self._link.stopping = True
        self._link.reader.pin(self._comparer.needed_from(cursor), _PIN_MS)
        self.renew(cursor)
        self._link.housekeeping()

    def renew(self, cursor: int) -> None:
        """Renew the pin and publish the report, if due."""
        if time.monotonic() >= self._report_due:
            self._report_due = time.monotonic() + _LOOK_S
            self._link.reader.pin(self._comparer.needed_from(cursor), _PIN_MS)
            self._publish(self._link.conn)

    def _publish(self, conn: Connection) -> None:
        self._comparison.found.looks += 1
        stats = self._link.counters.values()
        found = self._comparison.findings()
        found.events, found.answered = int(stats["events_in"]), int(stats["frames"])
        found.p50_ms, found.p99_ms = stats["p50_ms"], stats["p99_ms"]
        report = json.dumps(found.document())
        commands: list[Any] = [("SET", self._link.keys.compared(self._link.name), report, "PX", _REPORT_MS)]
        commands += [("PEXPIRE", key, _REPORT_MS) for key in (self._served, self._served_bytes)]
        if told := self._comparison.told:
            key = self._link.keys.differ(self._link.name)
            commands += [("RPUSH", key, *told), ("PEXPIRE", key, _REPORT_MS)]
            self._comparison.told = []
        conn.transaction(commands)


def _by_number(answers: Iterable[bytes | bytearray]) -> Served:
    found = {}
    for data in answers:
        with suppress(ProtocolError):
            frame = decode(data)
            found[frame.header.lane, frame.header.number] = frame
    return found
