"""One engine-free lane with its background thread: the paper's Algorithm 1 (section IV-B) over the slot log.

The caller's thread only appends to a bounded buffer. The channel's thread flushes the gathered events as one frame, takes
answers by range reads and calls the listeners. While a frame is under way, events gather for the next one, so the round trip
determines the number of frames; a full frame does not wait, up to the window. An idle channel sleeps and costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udo_interface.lane.columns import Picker
from udo_interface.lane.lane import Collector, Sender
from udo_interface.lane.opening import Opened
from udo_interface.lane.place import LOOK_MS
from udo_protocol import supervised
from udo_protocol.errors import LaneExpired, PeerError, SchemaError, ServerLost, SlotBroken, UdoError, UsageError, WaitTimeout
from udo_protocol.formats.rows import as_events
from udo_protocol.limits import LEAST_SHARE
from udo_protocol.queue.lane_end import LaneEnd

Listener = Callable[[Any], None]
# If no answer has come by then, the outcome of the push is read: only that shows a full log.
_SETTLE_MS = 20
# An idle client renews its lane at least this often.
_LOOK_IN_S = 200.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChannelSettings:
    """Bounds of a channel."""

    # Events per frame at most; the paper uses 10,000 at 100,000 events/s.
    batch_events: int = 10_000
    # How long a frame's first event waits for others. 0: the events that gather while a frame is being sent make up the next one.
    linger_ms: float = 0.0
    # Events that may wait to be sent; at this bound `send` blocks, for at most `send_timeout_s`.
    buffer_events: int = 100_000
    send_timeout_s: float = 30.0
    # Frames under way at most; None: the deployment's bound.
    window: int | None = None

    def __post_init__(self) -> None:
        if self.batch_events < 1 or self.buffer_events < 1 or self.linger_ms < 0 or self.send_timeout_s <= 0:
            raise UsageError(f"expected batch_events >= 1, buffer_events >= 1, linger_ms >= 0, send_timeout_s > 0, got {self}")


class EventsLost(ServerLost):
    """The queue server or the lane was lost with events under way; `unanswered` holds their batches, `unsent` counts buffered events."""

    def __init__(self, message: str, unanswered: list[pa.RecordBatch] | None = None, unsent: int = 0) -> None:
        super().__init__(message)
        self.unanswered, self.unsent = unanswered or [], unsent


class Channel:
    """A lane of a client: `send` from any thread; listeners are called in the thread of the channel, in order."""

    def __init__(self, opened: Opened, end: LaneEnd, settings: ChannelSettings) -> None:
        self.address = f"{opened.keys}{opened.lane}"
        self.place, self._settings = opened.place, settings
        self._names = set(opened.input.names)
        self._schema = opened.input
        self._pick = Picker(opened.input, str(opened.place))
        self._out, self._in = end, opened.end()
        self._sender = Sender(self._out, opened.place, opened.input)
        self._collector = Collector(self._in, self._sender, opened.output)
        self._window = settings.window or opened.place.window_frames
        self._renew_s = min(opened.limits.lane_ttl_ms / 3000, _LOOK_IN_S)
        self._listeners: list[tuple[Listener, bool]] = []
        self._buffer: deque[Mapping[str, Any] | pa.RecordBatch] = deque()
        self._buffered = 0  # events in the buffer
        self._asked: deque[pa.RecordBatch] = deque()  # frames sent and not yet delivered
        self._answered = 0  # events whose answers were delivered
        self._in_hand = 0  # events taken from the buffer and not yet under way
        self._closing = False
        self.error: UdoError | None = None
        self._settled = True  # whether the outcome of the last push is known
        self._sleeps = False  # whether the thread waits for events
        self._lock = lock = threading.Lock()
        self._filled = threading.Condition(lock)  # the thread waits for events
        self._moved = threading.Condition(lock)  # callers wait for room, credits or the end
        self._sender.open()
        self._thread = supervised.once("channel", self._run, opened.lane)

    def send(self, event: Mapping[str, Any]) -> None:
        """Hand over one event and return at once; blocks only while the buffer is full."""
        if not (self._names <= event.keys()):
            lacking = ", ".join(sorted(self._names - event.keys()))
            raise SchemaError(
                f"{self.place}: the event lacks {lacking}; expected {', '.join(self._schema.names)}, got {', '.join(map(str, event))}"
            )
        self._append(event, 1)

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Hand over a record batch of events; it travels as a frame of its own."""
        if lacking := [n for n in self._schema.names if n not in batch.schema.names]:
            raise SchemaError(f"{self.place}: the batch lacks {', '.join(lacking)}; it has {', '.join(batch.schema.names)}")
        if batch.num_rows:
            self._append(self._pick(batch), batch.num_rows)

    def _append(self, item: Mapping[str, Any] | pa.RecordBatch, events: int) -> None:
        with self._lock:
            if self.error is not None or self._buffered + events > self._settings.buffer_events:
                # A batch larger than the whole buffer goes in alone.
                self._wait(
                    lambda: not self._buffered or self._buffered + events <= self._settings.buffer_events,
                    self._settings.send_timeout_s,
                    "room in the send buffer",
                )
            if self._closing:
                raise UsageError(f"{self.place}: the client is closed")
            self._buffer.append(item)
            self._buffered += events
            if self._sleeps:
                self._sleeps = False
                self._filled.notify()

    def _wait(self, met: Callable[[], bool], timeout_s: float, what: str) -> None:
        """With the lock held: sleep until `met`; raises the channel's error, WaitTimeout, or UsageError in a listener."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.error is not None:
                raise self.error
            if met():
                return
            self._require_caller(what)
            if not self._moved.wait(max(deadline - time.monotonic(), 0)) and time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"{self.place}: waited {timeout_s:g} s for {what}; "
                    f"{self._buffered} events are buffered, {len(self._asked)} frames unanswered"
                )

    def _require_caller(self, what: str) -> None:
        """UsageError in the channel's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"{self.place}: a listener cannot wait for {what}: it is called in the thread that sends the events and takes the answers. "
                "Let it return, and wait in another thread"
            )

    def add(self, listener: Listener, batches: bool) -> None:
        """Call `listener` for every answer from now on: with one event (dict), or with record batches."""
        with self._moved:
            self._listeners = [*self._listeners, (listener, batches)]

    def remove(self, listener: Listener) -> None:
        """Do not call `listener` any more; UsageError if it was never added."""
        with self._moved:
            rest = [e for e in self._listeners if e[0] != listener]
            if len(rest) == len(self._listeners):
                raise UsageError(f"{self.place}: this listener was not added: {listener!r}")
            self._listeners = rest

    def unanswered(self) -> list[pa.RecordBatch]:
        """The batches that were sent and whose answers were not delivered, oldest first."""
        with self._lock:
            return list(self._asked)

    def flush(self, timeout_s: float) -> None:
        """Wait until every event sent so far was answered and its answers delivered."""
        with self._moved:
            self._wait(lambda: not self._buffered and not self._asked and not self._in_hand, timeout_s, "answers to all events")

    def close(self, timeout_s: float) -> None:
        """Drain, stop the thread, remove the lane; raises the channel's error, if there is one. May be called again."""
        with self._moved:
            if self._closing:
                return
            self._require_caller("the end of the channel")
            self._closing = True
            self._filled.notify_all()
        try:
            self.flush(timeout_s)
        finally:
            with self._moved:
                failed, self.error = self.error, self.error or UsageError(f"{self.place}: the client is closed")
                for c in (self._filled, self._moved):
                    c.notify_all()
            self._thread.join(LOOK_MS / 1000 + 2)
            if failed is None:
                try:
                    self._in.close()
                except PeerError as e:
                    log.warning("lane %s was not removed: %s; it expires by itself", self.address, e)
            self._out.conn.close()
            self._in.conn.close()

    def _run(self) -> None:
        """Run once, never restarted: after a failure the outcome of the frames under way is unknown, so callers must open a new client."""
        try:
            self._work()
        except Exception as e:
            self._fail(e)

    def _fail(self, e: Exception) -> None:
        with self._moved:
            if self.error is not None:
                return
            unsent = self._buffered + self._in_hand
            if isinstance(e, (ServerLost, LaneExpired, SlotBroken)):
                remedy = "Their batches are in `unanswered` of this error; open a new client and send them again"
                self.error = EventsLost(f"{self.place}: {e}. Lost: {self._left(unsent)}. {remedy}", list(self._asked), unsent)
            else:
                self.error = e if isinstance(e, UdoError) else UdoError(f"{self.place}: {type(e).__name__}: {e}")
                self.error.__cause__ = e.__cause__
                self.error.add_note(f"Left by this client: {self._left(unsent)}. Its `unanswered` returns the batches of the former")
            if not self._closing:
                log.error("the lane %s ended: %s", self.address, self.error)
            for c in (self._filled, self._moved):
                c.notify_all()

    def _left(self, unsent: int) -> str:
        """The events without an answer, in words."""
        rows = sum(b.num_rows for b in self._asked)
        first = self._answered + 1
        lost = (
            f"events {first} to {first + rows - 1} ({rows} in {len(self._asked)} frames) were sent and not answered"
            if rows
            else "no event was under way"
        )
        return f"{lost}; {unsent} more were buffered and not sent; {self._answered} had been answered"

    def _work(self) -> None:
        """Send gathered events and take answers until the channel ends."""
        while self._awake():
            while (batch := self._next_batch()) is not None:
                self._push(batch)
            if self._asked:
                self._take()

    def _awake(self) -> bool:
        """Sleep while there is nothing to send and nothing to wait for; False when the channel ends."""
        with self._lock:
            while not self._buffer and not self._asked:
                if self._closing or self.error is not None:
                    return False
                self._sleeps = True
                if not self._filled.wait(self._renew_s):
                    break  # idle: collect, which renews the lane's lease
            self._sleeps = False
            if self._buffer or self._asked:
                return self.error is None
        self._in.collect(0)
        return True

    def _push(self, batch: pa.RecordBatch) -> None:
        for rows, pieces in self._sender.encode(batch):
            while len(self._asked) >= min(self._window, LEAST_SHARE) and len(self._asked) >= self._sender.share(self._window):
                self._take()
            if not self._asked:
                self._collector.due()
            with self._lock:
                self._asked.append(batch if rows == batch.num_rows else batch.slice(0, rows))
                self._in_hand -= rows
            self._sender.push(pieces)
            self._settled = False
            batch = batch.slice(rows)

    def _take(self) -> None:
        if self.error is not None:  # closed, or failed, meanwhile
            raise self.error
        # An answer implies that its frame was accepted; the outcome of the push is read only if no answer comes soon.
        answers = self._collector.wait(LOOK_MS if self._settled else _SETTLE_MS)
        if not answers:
            self._sender.settle()
            self._settled = True
        for answer in answers:
            self._deliver(answer)
            with self._lock:
                self._answered += self._asked.popleft().num_rows
                self._moved.notify_all()

    def _next_batch(self) -> pa.RecordBatch | None:
        """The events to send now, at most `batch_events`: all buffered ones if nothing is under way, else only a full frame.

        A record batch is a frame of its own, and so is always full.
        """
        limit, linger = self._settings.batch_events, self._settings.linger_ms / 1000
        with self._lock:
            if linger and not self._asked and not self._closing and self._buffered < limit:
                deadline = time.monotonic() + linger
                while self._buffered < limit and not self._closing and (left := deadline - time.monotonic()) > 0:
                    self._sleeps = True
                    self._filled.wait(left)
            if not self._buffer or len(self._asked) >= self._window:
                return None
            head = self._buffer[0]
            if isinstance(head, pa.RecordBatch):
                self._buffer.popleft()
                self._buffered -= head.num_rows
                self._in_hand = head.num_rows
                self._moved.notify_all()
                return head
            if self._asked and self._buffered < limit:
                return None
            events: list[Mapping[str, Any]] = []
            while self._buffer and len(events) < limit and not isinstance(self._buffer[0], pa.RecordBatch):
                events.append(self._buffer.popleft())
            self._buffered -= len(events)
            self._in_hand = len(events)
            self._moved.notify_all()
        return self._encode(events)

    def _encode(self, events: list[Any]) -> pa.RecordBatch:
        arrays = []
        for f in self._schema:
            values = [e[f.name] for e in events]
            try:
                arrays.append(pa.array(values, f.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as e:
                bad = next((event for event, v in zip(events, values, strict=True) if not _fits(v, f.type)), None)
                raise SchemaError(f"{self.place}: column {f.name!r} expects {f.type}: {e}; the event: {bad!r:.500}") from e
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _deliver(self, answer: pa.RecordBatch) -> None:
        listeners = self._listeners
        if not answer.num_rows or not listeners:
            return
        events = as_events(answer) if any(not batches for _, batches in listeners) else []
        for listener, batches in listeners:
            try:
                if batches:
                    listener(answer)
                else:
                    for event in events:
                        listener(event)
            except Exception:
                # One listener's failure must not keep answers from the others.
                log.exception("a listener of %s failed; answers are still delivered", self.address)


def _fits(value: Any, t: pa.DataType) -> bool:
    try:
        pa.array([value], t)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
        return False
    return True
