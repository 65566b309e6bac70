"""The frames with which an instance answers, of all kinds, and the lanes whose further frames are skipped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import pyarrow as pa

from udo_protocol.errors import UdoError
from udo_protocol.queue import event_times
from udo_protocol.queue.event_times import EventTimes
from udo_protocol.queue.frame import ANSWER, ERROR, SKIPPED, STALE, Failure, Header, Kind, encode
from udo_runtime.engine.effects import Answer
from udo_runtime.execution.gathered import too_large
from udo_runtime.failure import ProcessingError

# Lanes remembered; a lane lives for seconds, so this is far more than can be alive at once.
_MOST = 10_000


class Replies:
    """The replies of version `reference` (name@version) in this instance; `schema`: the id of its answers' schema; `bound`: the bytes of
    the largest answer."""

    def __init__(self, reference: str, instance: str, schema: bytes, bound: int) -> None:
        self.reference, self.instance, self._schema, self._bound = reference, instance, schema, bound
        self._version = reference.partition("@")[2]

    def header(self, to: Header, kind: Kind) -> Header:
        """The header of an answer to a frame."""
        return Header(lane=to.lane, number=to.number, kind=kind, version=self._version, trace=to.trace)

    def events(self, to: Header, answer: pa.RecordBatch, highest: EventTimes | None = None) -> Answer:
        """The operator's own answer; `highest`: the highest event times of the answered events, if it uses event time. ProcessingError for
        an answer that is too large."""
        if (size := answer.nbytes) > self._bound:
            raise too_large(answer.num_rows, size, self._bound)
        reply = self.header(to, ANSWER)
        if highest:
            reply.MergeFrom(Header(**event_times.fields(highest)))
        reply.rows = answer.num_rows
        reply.schema = self._schema
        return to.lane, encode(reply, answer if answer.num_rows else None)

    def nothing(self, to: Header) -> Answer:
        """An answer without events."""
        return to.lane, encode(self.header(to, ANSWER))

    def skipped(self, to: Header) -> Answer:
        """The answer to a frame after one that failed."""
        return to.lane, encode(self.header(to, SKIPPED))

    def stale(self, to: Header) -> Answer:
        """The answer to a frame of an attempt that has been overtaken."""
        return to.lane, encode(self.header(to, STALE))

    def error(self, to: Header, failure: Failure) -> Answer:
        """The answer to a frame that failed."""
        failure.operator, failure.instance = self.reference, self.instance
        reply = self.header(to, ERROR)
        reply.failure.CopyFrom(failure)
        return to.lane, encode(reply)


class FailedLanes:
    """The newest failed lanes, up to a bound."""

    def __init__(self, lanes: Iterable[str] = ()) -> None:
        self._lanes: OrderedDict[str, None] = OrderedDict.fromkeys(lanes)

    def __contains__(self, lane: str) -> bool:
        return lane in self._lanes

    def add(self, lane: str) -> None:
        """Add a lane; beyond the bound the oldest is removed."""
        self._lanes[lane] = None
        if len(self._lanes) > _MOST:
            self._lanes.popitem(last=False)


def failure(e: UdoError) -> Failure:
    """The wire form of an error."""
    if isinstance(e, ProcessingError):
        return Failure(code=e.wire_code, message=str(e), traceback=e.traceback, event=e.event)
    return Failure(code=e.code, message=str(e))
