"""The loop of an instance: shadow until promoted, then read, process, answer, until fenced or told to stop.

Answers leave without waiting for their outcome: the fence is decided on the server together with the write, so the
next frame is processed meanwhile, and a fenced instance learns it before it could do harm.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from udo_protocol.backoff import LinearBackoff
from udo_protocol.connection import Connection
from udo_protocol.errors import Fenced, ProtocolError, UdoError, Unavailable
from udo_protocol.frame import ANSWER, DATA, END, ERROR, SKIPPED, Bytes, Failure, Frame, Header, Kind, decode, encode
from udo_protocol.keys import HEARTBEAT
from udo_protocol.limits import Limits
from udo_protocol.schema import conform, misfits, schema_id, to_ipc
from udo_protocol.slot import store_schema, stored_schema
from udo_protocol.slot_reader import Emit, Read, SlotReader
from udo_runtime.bad_events import Bad, again
from udo_runtime.failure import ProcessingError
from udo_runtime.letters import Letters
from udo_runtime.load import Processor
from udo_runtime.stats import Stats

Answer = tuple[str, list[Bytes]]
Result = TypeVar("Result", bound="pa.RecordBatch | None")
# Answers of at least this size are sent at once; smaller ones travel together.
_GROUP_BYTES = 64 << 10
# Failed lanes remembered; a lane lives for seconds, so this is far more than can be alive at once.
_FAILED_LANES = 10_000
_HEARTBEAT_EVERY_S = 1.0
# Looks in a row without the heartbeat: a queue server that hung may have let it expire, and is asked for it before it is renewed.
_HEARTBEAT_MISSED = 4
# Publishing the last counters must not hold up an end.
_LAST_WORDS_S = 2.0


class Stopped(BaseException):
    """Raised by the signal handler while the instance is parked."""


class Instance:
    """One operator process attached to a slot."""

    # Under the policy `dead-letter`, where bad events go.
    letters: Letters | None = None

    def __init__(
        self,
        conn: Connection,
        reader: SlotReader,
        processor: Processor,
        schemas: tuple[pa.Schema, pa.Schema],
        reference: str,
        limits: Limits,
    ) -> None:
        self._conn, self._reader, self._process = conn, reader, processor
        self._input, self._output = schemas
        self._operator, _, self._version = reference.partition("@")
        self._reference, self._limits = reference, limits
        self._output_id = store_schema(conn, reader.prefix, to_ipc(self._output))
        self._schemas: dict[bytes, pa.Schema] = {schema_id(to_ipc(self._input)): self._input}
        self._failed: OrderedDict[str, None] = OrderedDict()
        self._backoff = LinearBackoff(limits.backoff_increment_us, limits.backoff_ceiling_us)
        self._stats = Stats(f"{reader.prefix}stats:{reader.name}")
        self._heartbeat_due, self._unheard = 0.0, 0
        self._unconfirmed = 0
        self._pinned = False
        self.stopping = self.parked = False

    def serve(self) -> None:
        """Run until told to stop (returns), fenced (Fenced) or left without a node manager (Unavailable)."""
        try:
            cursor = self._shadow()
            while not self.stopping:
                cursor = self._step(cursor)
            self._settle()
        except Stopped:
            pass  # parked: nothing is under way but the parking's own replies
        finally:
            # A connection of its own: on the loop's one, replies may still be to come.
            with suppress(UdoError), closing(Connection(self._conn.path, timeout_s=_LAST_WORDS_S, login=self._conn.login)) as conn:
                self._stats.publish(conn, force=True)

    def _shadow(self) -> int:
        """Wait for the promotion; answer the first unanswered sequence number."""
        while True:
            read = self._reader.read(1)
            if read.owner == self._reader.token:
                return self._begin(read)
            if read.owner > self._reader.token:
                raise Fenced(f"token {self._reader.token} was overtaken by {read.owner} before it was promoted")
            self._park_shadow(read.emitted + 1, self._limits.park_ms)

    def _begin(self, read: Read) -> int:
        """Promoted: where to begin."""
        if self.letters is not None:
            self.letters.begin(read.emitted)
        return read.emitted + 1

    def _step(self, cursor: int) -> int:
        """Read once and answer what was there; the cursor after it."""
        park_ms = self._limits.park_ms if self._backoff.at_ceiling else None
        self._reader.send_read(cursor, self._expected_base(cursor), park_ms)
        if park_ms is not None:
            with self._parking():
                self._reader.sleep()
        self._settle_emits()
        if park_ms is not None:
            self._reader.woken(park_ms)
        read = self._reader.receive_read(cursor) or self._reader.read(cursor)
        if read.owner != self._reader.token:
            raise Fenced(f"token {self._reader.token} is not the owner any more, {read.owner} is")
        self._pinned = read.base < read.first
        cursor = self._answer_all(read.first, read.frames) if read.frames else read.first
        if read.frames or park_ms is not None:
            self._backoff.reset()
            self._housekeeping()
        else:
            self._backoff.pause()
        return cursor

    def _expected_base(self, cursor: int) -> int | None:
        """What was answered is trimmed in the same step, so the log begins at the cursor; unless a pin holds it: then as before."""
        return None if self._pinned else cursor

    def _answer_all(self, seq: int, frames: Sequence[bytes | bytearray]) -> int:
        waiting: list[Answer] = []
        size = 0
        for data in frames:
            answer = self._answer(seq + len(waiting), data)
            waiting.append(answer)
            size += sum(map(len, answer[1]))
            if size >= _GROUP_BYTES:
                self._send(seq, waiting)
                seq, waiting, size = seq + len(waiting), [], 0
        if waiting:
            self._send(seq, waiting, hold=True)  # the next read follows at once
        return seq + len(waiting)

    def _send(self, seq: int, answers: list[Answer], *, hold: bool = False) -> None:
        self._settle_emits()
        self._reader.send_emit(seq, answers, hold=hold)
        self._unconfirmed = 1

    def _settle_emits(self) -> None:
        if self._unconfirmed:
            self._unconfirmed = 0
            if (outcome := self._reader.emit_reply()) is not Emit.EMITTED:
                raise ProtocolError(f"instance {self._reader.name} answered out of turn: {outcome}")

    def _settle(self) -> None:
        try:
            self._settle_emits()
        except UdoError:
            self._unconfirmed = 0

    def _answer(self, seq: int, data: bytes | bytearray) -> Answer:
        """The answer to one frame, whatever is in it."""
        try:
            frame = decode(data)
        except ProtocolError as e:
            self._settle_emits()
            lane, number = self._reader.sender(seq)
            return self._error(Header(lane=lane, number=number), Failure(code=e.code, message=str(e)))
        header = frame.header
        if header.lane in self._failed:
            return header.lane, encode(self._reply(header, SKIPPED))
        if header.kind == END:
            return header.lane, encode(self._reply(header, ANSWER))
        try:
            if header.kind != DATA:
                raise ProtocolError(f"expected a DATA or END frame, got kind {header.kind}")
            batch = self._batch(frame)
            if problems := misfits(batch.schema, self._input):
                raise ProtocolError("the frame does not fit the operator's input schema: " + "; ".join(problems))
            batch = conform(batch, self._input)
            try:
                answer = self._timed(batch.num_rows, lambda: self._process.once(batch))
            except ProcessingError as e:
                answer = self._mended(seq, header, batch, e)
            self._require_bounded(answer)
        except ProcessingError as e:
            return self._error(header, Failure(code=e.wire_code, message=str(e), traceback=e.traceback, event=e.event))
        except ProtocolError as e:
            return self._error(header, Failure(code=e.code, message=str(e)))
        return self._encoded(header, answer)

    def _mended(self, seq: int, header: Header, batch: pa.RecordBatch, error: ProcessingError) -> pa.RecordBatch:
        """The answer to a frame that user code has failed on, by the deployment's policy; ProcessingError under `fail`."""
        bad: list[Bad] = []

        def work() -> pa.RecordBatch:
            try:
                return again(lambda: self._process.once(batch), self._limits.retries, error, self._stats.retried)
            except ProcessingError as e:
                if self.letters is None or header.strict:
                    self._process.name_event(e, batch)
                    raise
                room = self.letters.room.events()
                answer, found = self._process.without_bad(batch, e, room)
                if len(found) > room:
                    raise self.letters.full(e) from e
                bad.extend(found)
                return answer

        answer = self._timed(batch.num_rows, work)
        if bad and self.letters is not None:
            self.letters.keep(seq, header, bad, self._reference, self._reader.name)
            self._stats.dead_letters += len(bad)
        return answer

    def _timed(self, rows: int, work: Callable[[], Result]) -> Result:
        started = time.perf_counter()
        answer = work()
        self._stats.record(rows, 0 if answer is None else answer.num_rows, time.perf_counter() - started)
        return answer

    def _require_bounded(self, answer: pa.RecordBatch | None) -> None:
        """ProcessingError for an answer that nobody would take."""
        if answer is not None and answer.nbytes > self._limits.answer_bytes:
            raise ProcessingError(
                f"the answer to one frame has {answer.num_rows} events of {answer.nbytes} bytes; the bound is {self._limits.answer_bytes}: "
                "answer less for each event, or send fewer events at a time"
            )

    def _encoded(self, header: Header, answer: pa.RecordBatch) -> Answer:
        reply = self._reply(header, ANSWER)
        reply.rows = answer.num_rows
        reply.schema = self._output_id
        return header.lane, encode(reply, answer if answer.num_rows else None)

    def _batch(self, frame: Frame) -> pa.RecordBatch:
        """The events of a frame. Text that is none is one event's fault, where events are looked at one by one."""
        return frame.batch(self._schema(frame.header.schema), text=not self._process.by_event)

    def _schema(self, identity: bytes) -> pa.Schema:
        found = self._schemas.get(identity)
        if found is None:
            self._settle_emits()
            found = self._schemas[identity] = stored_schema(self._conn, self._reader.prefix, identity)
        return found

    def _reply(self, header: Header, kind: Kind) -> Header:
        return Header(lane=header.lane, number=header.number, kind=kind, version=self._version, trace=header.trace)

    def _error(self, header: Header, failure: Failure) -> Answer:
        failure.operator, failure.instance = self._reference, self._reader.name
        self._failed[header.lane] = None
        if len(self._failed) > _FAILED_LANES:
            self._failed.popitem(last=False)
        self._stats.errors += 1
        reply = self._reply(header, ERROR)
        reply.failure.CopyFrom(failure)
        return header.lane, encode(reply)

    def _park_shadow(self, cursor: int, wait_ms: int) -> None:
        with self._parking():
            self._reader.park(cursor, wait_ms, shadow=True)
        self._housekeeping()

    @contextmanager
    def _parking(self) -> Iterator[None]:
        """While it lasts, SIGTERM raises Stopped instead of waiting for the next frame."""
        self.parked = True
        try:
            if self.stopping:
                raise Stopped
            yield
        finally:
            self.parked = False

    def _housekeeping(self) -> None:
        now = time.monotonic()
        if now < self._heartbeat_due:
            return
        self._settle_emits()
        self._heartbeat_due = now + _HEARTBEAT_EVERY_S
        self._stats.publish(self._conn, now=now)
        self._unheard = 0 if self._conn.call("EXISTS", HEARTBEAT) else self._unheard + 1
        if self._unheard >= _HEARTBEAT_MISSED:
            raise Unavailable(f"no heartbeat of the node manager any more: instance {self._reader.name} stops itself")
