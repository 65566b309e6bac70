"""A lane over one slot: frames go out numbered, up to a window ahead of their answers, which come back in order.

This is the hot path: one encode and one transaction per batch out, one range read per batch in. It never reorders,
repeats or drops a frame; answers are matched by lane and number (answers.py); any mismatch raises, naming the operator,
version, node, slot and epoch.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from udo_interface.lane.place import LOOK_MS, Place, ProgressDeadline, Stamp
from udo_protocol.clock import Clock, SystemClock
from udo_protocol.errors import LaneExpired, OperatorError, PeerError, ProtocolError, SchemaError, Stale, UdoError, UsageError, by_code
from udo_protocol.formats.schema import conform, misfits, schema_id, to_ipc
from udo_protocol.limits import LEAST_SHARE
from udo_protocol.queue import event_times, frame
from udo_protocol.queue.answers import Answers
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.event_times import EventTimes
from udo_protocol.queue.frame import Bytes, Frame, Header, bounded
from udo_protocol.queue.lane_end import LaneEnd, Push, PushReply, gone
from udo_protocol.queue.route import Route

# A full log empties at the operator's pace: retry after 0.5, 1, 1.5 ... 20 ms.
BUSY_INCREMENT_US, BUSY_CEILING_US = 500, 20_000
# A slot takes frames by a newer route within about 10 ms: look after 0.2, 0.4 ... 1 ms, and push again after MOVED_LOOKS looks.
MOVED_INCREMENT_US, MOVED_CEILING_US, MOVED_LOOKS = 200, 1_000, 20
# How often the number of lanes that share a slot is looked up: often enough that nobody notices a lag, rarely enough that the cost is
# negligible beside that of the frames.
SHARE_LOOK_S = 0.25
# Spark itself starts a newer attempt only after an older one has failed. Any other newer attempt is a second evaluation of the call.
TWICE = (
    ". If Spark has not tried this task again, the call is evaluated twice at once, by two branches of a plan or two threads: persist() "
    "its DataFrame in foreachBatch before both use it, or, if each is to have a state of its own, call the operator twice, with uid= each"
)


class Rerouted(Exception):
    """The slot has refused the last frame, since this newer route has moved key groups: the frame's number is free again."""

    def __init__(self, route: Route) -> None:
        super().__init__(f"key groups have moved by version {route.version} of the route")
        self.route = route


class Sender:
    """Numbers, encodes and pushes batches; a push's outcome is read before the next use of the connection.

    With `splits` the caller can send a frame's events elsewhere, and gets Rerouted when the slot's groups have changed.
    """

    splits = False

    def __init__(self, end: LaneEnd, place: Place, schema: pa.Schema, clock: Clock | None = None, stamp: Stamp | None = None) -> None:
        self._end, self.place, self.stamp = end, place, stamp
        self._marks = stamp.header() if stamp else {}
        self._part, self._label = (f"{place.session}:{place.partition}", stamp.order()) if stamp else ("", "")
        self._ipc = to_ipc(schema)
        self._schema = schema_id(self._ipc)
        self._clock = clock or SystemClock()
        self._unsettled: tuple[int, list[Bytes], bool, int] | None = None  # number, frame, control, route version
        self.number = 0
        self._lanes, self._counted = 1, float("-inf")

    @property
    def slot(self) -> str:
        """The slot, as group maps name it."""
        return self._end.route.slots[0]

    def share(self, window: int) -> int:
        """How many of the `window` frames asked for may be under way: all while the lane is alone in its slot, else its fair part."""
        if (now := self._clock.monotonic()) - self._counted > SHARE_LOOK_S:
            self.settle()
            self._lanes, self._counted = self._end.lanes(), now
        if self._lanes <= 1:
            return window
        return min(window, self._end.limits.share(self._lanes))

    def open(self) -> None:
        """Register the lane and the schema of its frames."""
        self._end.open(self._ipc)

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[int, list[Bytes]]]:
        """Yield (rows, frame) for this batch, in halves if it is above the frame bound; the caller pushes each before the next."""
        place = self.place
        header = Header(
            lane=self._end.lane,
            number=self.number + 1,
            kind=frame.DATA,
            rows=batch.num_rows,
            schema=self._schema,
            partition=place.partition,
            session=place.session,
            **self._marks,
        )
        pieces = frame.encode(header, batch)
        size = sum(map(len, pieces))
        if size <= place.frame_bytes:
            yield batch.num_rows, pieces
        elif batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.encode(batch.slice(0, half))
            yield from self.encode(batch.slice(half))
        else:
            raise UsageError(
                f"{place}: one event takes {size} bytes; the bound is {place.frame_bytes} (limit frame_bytes of the deployment)"
            )

    def push(self, pieces: list[Bytes], *, control: bool = False) -> None:
        """Send the frame that `encode` made; its outcome is read by `settle`."""
        self.settle()
        self.number += 1
        self._end.send_push(self.number, self.number - 1, pieces, control=control, part=self._part, label=self._label)
        self._unsettled = (self.number, pieces, control, self._end.route.version)

    def go_by(self, version: int) -> None:
        """Send all further frames by this version of the slot's route, if it is newer."""
        if version > self._end.route.version:
            self._end.route = Route(version, self._end.route.slots)

    def push_end(self, *, void: bool = False, highest: EventTimes | None = None, groups: Sequence[int] | None = None) -> None:
        """End the attempt after all its events, which have these highest event times; `void`: its input was cut short, it leaves no trace.

        `groups`: the key groups to end, instead of all that this lane answers for.
        """
        assert self.stamp is not None
        ended = self.stamp.groups if groups is None else groups
        self.push_control(frame.END, groups=ended, void=void, **event_times.fields(highest or {}))

    def push_control(self, kind: frame.Kind, batch: pa.RecordBatch | None = None, **fields: Any) -> None:
        """Send a frame that is not made of events, with these header fields."""
        place, header = self.place, {**self._marks, **fields}
        marked = Header(lane=self._end.lane, number=self.number + 1, kind=kind, partition=place.partition, session=place.session, **header)
        self.push(frame.encode(marked, batch), control=True)

    def settle(self) -> None:
        """Read the outcome of the last push; waits while the log is full, and pushes again when the route has changed."""
        if self._unsettled is None:
            return
        number, pieces, control, version = self._unsettled
        self._unsettled = None
        reply = self._end.push_reply()
        if reply.status is Push.ACCEPTED:
            return
        if reply.status in (Push.BUSY, Push.MOVED):
            reply = self._push_again(reply, number, pieces, version, control=control)
        if reply.status is Push.EXPIRED:
            raise LaneExpired(f"{self.place}: {gone(self._end.lane, self._end.limits)}")
        if reply.status is Push.STALE:
            raise Stale(
                f"{self.place}: a newer attempt at this epoch is known ({bytes(reply.value or b'').decode()}); this one gives up{TWICE}"
            )
        if reply.status is not Push.ACCEPTED:
            raise ProtocolError(f"{self.place}: frame {number} of lane {self._end.lane} was refused: {reply.status} {reply.value or ''}")

    def close(self) -> None:
        """Close the lane and its connection; the outcome of the last push does not matter any more."""
        with contextlib.suppress(PeerError, OSError):
            if self._unsettled is not None:
                self._unsettled = None
                self._end.push_reply()
            self._end.close()
        self._end.conn.close()

    def _push_again(self, reply: PushReply, number: int, pieces: list[Bytes], version: int, *, control: bool) -> PushReply:
        """Retry until the log has room, by the newest route: all frames before this one are accepted, none after it is sent.

        With `splits`, raises Rerouted if the slot has a newer route than the frame's.
        """
        backoff = LinearBackoff(BUSY_INCREMENT_US, BUSY_CEILING_US, self._clock)
        patience = ProgressDeadline(self._end, self.place, self._clock)
        while True:
            if reply.status is Push.BUSY:
                patience.check(f"room for frame {number} ({reply.value} bytes retained)")
                backoff.pause()
            elif reply.status is not Push.MOVED:
                return reply
            elif self.splits and (route := self._end.newer(reply, version)) is not None:
                self.number -= 1
                raise Rerouted(route)
            elif self.splits or not self._end.follow(reply):
                patience.check(f"the slot to take frame {number} by version {self._end.route.version} of the route")
                self._await_route(version if self.splits else self._end.route.version)
            by = version if self.splits else None
            reply = self._end.push(number, number - 1, pieces, control=control, part=self._part, label=self._label, by=by)

    def _await_route(self, version: int) -> None:
        """Wait until the slot takes frames by this version, for a bounded number of looks."""
        backoff = LinearBackoff(MOVED_INCREMENT_US, MOVED_CEILING_US, self._clock)
        for _ in range(MOVED_LOOKS):
            backoff.pause()
            if self._end.accepts_by() >= version:
                break


class Collector:
    """Hands out the answers to the frames of `sender` in order, and turns every failure into an error that names the place."""

    def __init__(self, end: LaneEnd, sender: Sender, schema: pa.Schema, clock: Clock | None = None) -> None:
        self._end, self._sender, self._place, self._expected = end, sender, sender.place, schema
        self._schemas = {schema_id(to_ipc(schema)): schema}
        self._patience = ProgressDeadline(end, self._place, clock or SystemClock())
        self._answers = Answers(end.lane)
        self._failure: UdoError | None = None  # of a frame behind answers that were handed out
        self.highest: EventTimes = {}  # of the answered events; the operator leaves bad events out

    @property
    def number(self) -> int:
        """The last frame whose answer has been handed out."""
        return self._answers.number

    def poll(self) -> list[pa.RecordBatch]:
        """Return one batch, maybe without rows, per frame answered by now."""
        return self._read(lambda: self._matched(self._end.poll))

    def wait(self, wait_ms: int = LOOK_MS) -> list[pa.RecordBatch]:
        """As `poll`, but sleeps up to `wait_ms` for the next answer, which must be due."""
        return self._read(lambda: self.frames(wait_ms))

    def _read(self, come: Callable[[], list[Frame]]) -> list[pa.RecordBatch]:
        """The batches of these frames up to the first that fails; the next call raises its error."""
        if self._failure is not None:
            raise self._failure
        batches: list[pa.RecordBatch] = []
        for answer in come():
            try:
                batches.append(self._answer(answer))
            except UdoError as e:
                if not batches:
                    raise
                self._failure = e
                break
        return batches

    def frames(self, wait_ms: int = LOOK_MS) -> list[Frame]:
        """As `wait`, but return the frames unread; the caller passes each to `check`."""
        frames = self._matched(lambda: self._end.collect(wait_ms))
        if frames:
            self._patience.progress()
        else:
            self._patience.look()
            self._patience.check(f"the answer to frame {self.number + 1}")
        return frames

    def _matched(self, come: Callable[[], list[Frame]]) -> list[Frame]:
        try:
            return self._answers.take(come(), self._sender.number)
        except ProtocolError as e:
            raise self._improper(e) from e

    def due(self) -> None:
        """Start the wait for an answer now: the idle time before it does not count."""
        self._patience.progress()

    def check(self, answer: Frame) -> Header:
        """Return the answer's header if its frame was processed; else raise the error that it reports."""
        header = answer.header
        if header.kind == frame.ERROR:
            self._failed(header)
        if header.kind == frame.STALE:
            raise Stale(f"{self._place}: a newer attempt at this epoch was processed; the answers of this one do not count{TWICE}")
        if header.kind != frame.ANSWER:
            raise OperatorError(f"{self._place} did not process frame {header.number}: an earlier frame of this attempt failed")
        return header

    def batch(self, answer: Frame, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of an answer in that schema; ProtocolError names the place."""
        try:
            return answer.batch(schema)
        except ProtocolError as e:
            raise self._improper(e) from e

    def _improper(self, e: ProtocolError) -> ProtocolError:
        return type(e)(f"{self._place} answered with a malformed frame: {e}")

    def _answer(self, answer: Frame) -> pa.RecordBatch:
        header = self.check(answer)
        if self._place.timed:
            self.highest = event_times.combined((self.highest, event_times.told(header)))
        schema = self._schemas.get(header.schema)
        if schema is self._expected or answer.body is None:
            return self.batch(answer, self._expected)
        if schema is None:
            schema = self._schemas[header.schema] = self._schema(header)
        batch = self.batch(answer, schema)
        try:
            return conform(batch, self._expected)
        except ProtocolError as e:
            raise self._improper(e) from e

    def _schema(self, header: Header) -> pa.Schema:
        """Look up a schema that no earlier answer has named; SchemaError if its columns do not serve."""
        try:
            schema = self._end.schema(header.schema)
        except ProtocolError as e:
            raise self._improper(e) from e
        if problems := misfits(schema, self._expected):
            raise SchemaError(
                f"{self._place}, version {header.version}, answers with columns that this query was not planned with: {'; '.join(problems)}"
            )
        return schema

    def _failed(self, header: Header) -> NoReturn:
        failure = bounded(header.failure)
        who = f", instance {failure.instance}" if failure.instance else ""
        place = replace(self._place, version=header.version.rpartition("@")[2] or self._place.version)
        text = failure.message  # first the part that the operator's author and caller can act on; the place comes last
        if failure.event:
            text += f"\nThe offending event: {failure.event}"
        if failure.traceback:
            text += f"\nThe operator's traceback:\n{failure.traceback.rstrip()}"
        text += f"\nFrom {place}, frame {header.number}{who}"
        raise by_code(failure.code or OperatorError.code, text)


@dataclass(frozen=True, slots=True)
class PendingFrame:
    """One frame under way: rows `at` .. `at + rows` of an item handed to `exchange`, and the item's `kept`."""

    kept: Any
    at: int
    rows: int


def exchange(
    sender: Sender,
    collector: Collector,
    items: Iterator[tuple[pa.RecordBatch, Any]],
    window: int,
) -> Iterator[tuple[PendingFrame, pa.RecordBatch]]:
    """Answers to the batches of `items` = (batch, kept), sent up to `window` frames ahead; both ends share one connection.

    With a window of 1 a batch is answered before the next one is asked for. Attempts at a keyed operator: `split.SplitExchange`.
    """
    asked: deque[PendingFrame] = deque()

    def drain(left: int) -> Iterator[tuple[PendingFrame, pa.RecordBatch]]:
        if len(asked) > left:
            sender.settle()
        while len(asked) > left:
            for answer in collector.wait():
                yield asked.popleft(), answer

    for batch, kept in items:
        at = 0
        for rows, pieces in sender.encode(batch):
            if not asked:
                collector.due()
            sender.push(pieces)
            asked.append(PendingFrame(kept, at, rows))
            at += rows
            if len(asked) >= min(window, LEAST_SHARE):
                yield from drain(sender.share(window) - 1)
    yield from drain(0)
