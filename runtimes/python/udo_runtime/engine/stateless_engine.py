"""Frames of a stateless operator: each is answered by itself, in order; the policy may retry it and leave out its bad events."""

from __future__ import annotations

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.schema import conform, misfits
from udo_protocol.limits import SlotLimits
from udo_protocol.queue.frame import DATA, END, Frame, Header, decode
from udo_protocol.state.dead_letters import DEAD_LETTER
from udo_runtime.counters import Counters
from udo_runtime.engine.effects import Answer, Execute, FindSchema, FindSender, KeepLetters, LaneOpen, LetterRoom, Steps
from udo_runtime.engine.letter import full
from udo_runtime.engine.replies import FailedLanes, Replies, failure
from udo_runtime.execution.bad_events import again
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError


class StatelessEngine:
    """Answers one slot's frames. `policy`: the treatment of events that user code fails on (udo_protocol/state/dead_letters.py)."""

    def __init__(
        self,
        processor: Processor,
        schema: pa.Schema,
        replies: Replies,
        policy: str,
        deployment: str,
        limits: SlotLimits,
        counters: Counters,
    ) -> None:
        self._process, self._input, self._replies = processor, schema, replies
        self._puts_aside, self._deployment, self._limits = policy == DEAD_LETTER, deployment, limits
        self._counters, self._failed = counters, FailedLanes()

    def frame(self, seq: int, data: bytes | bytearray) -> Steps[Answer]:
        """The answer to one frame, whatever it contains."""
        try:
            frame = decode(data)
        except ProtocolError as e:
            lane, number = yield FindSender(seq)
            return self._error(Header(lane=lane, number=number), e)
        header = frame.header
        if header.lane in self._failed:
            return self._replies.skipped(header)
        if header.kind == END:
            return self._replies.nothing(header)
        if not (yield LaneOpen(header.lane)):  # its task was cancelled or died: do not let others wait for it
            return self._replies.skipped(header)
        try:
            if header.kind != DATA:
                raise ProtocolError(f"expected a DATA or END frame, got kind {header.kind}")
            answer = yield from self._events(seq, frame)
            return self._replies.events(header, answer)
        except (ProcessingError, ProtocolError) as e:
            return self._error(header, e)

    def _events(self, seq: int, frame: Frame) -> Steps[pa.RecordBatch]:
        batch = yield from fitting(frame, self._input, text=not self._process.by_event)
        try:
            return (yield Execute(batch.num_rows, lambda: self._process.once(batch)))
        except ProcessingError as e:
            return (yield from self._mended(seq, frame.header, batch, e))

    def _mended(self, seq: int, header: Header, batch: pa.RecordBatch, error: ProcessingError) -> Steps[pa.RecordBatch]:
        """The answer, by the deployment's policy, to a frame that user code has failed on; ProcessingError under `fail`."""
        process, retries, rows = self._process, self._limits.retries, batch.num_rows
        first = error
        try:
            return (yield Execute(rows, lambda: again(lambda: process.once(batch), retries, first, self._counters.retried)))
        except ProcessingError as e:
            error = e
        if not self._puts_aside or header.strict:
            process.name_event(error, batch)
            raise error
        room = yield LetterRoom()
        answer, found = yield Execute(rows, lambda: process.without_bad(batch, error, room))
        if len(found) > room:
            raise full(error, self._deployment, self._limits) from error
        if found:
            yield KeepLetters(seq, header, found)
            self._counters.dead_letters += len(found)
        return answer

    def _error(self, header: Header, e: ProcessingError | ProtocolError) -> Answer:
        self._failed.add(header.lane)
        self._counters.errors += 1
        return self._replies.error(header, failure(e))


def fitting(frame: Frame, schema: pa.Schema, *, text: bool) -> Steps[pa.RecordBatch]:
    """A frame's events in this schema; ProtocolError if they do not fit it.

    Without `text`, UTF-8 is not checked: if events are decoded one by one, invalid UTF-8 is one event's fault.
    """
    batch = frame.batch((yield FindSchema(frame.header.schema)), text=text)
    if batch.schema.equals(schema):
        return batch
    if problems := misfits(batch.schema, schema):
        raise ProtocolError("the frame does not fit the operator's input schema: " + "; ".join(problems))
    return conform(batch, schema)
