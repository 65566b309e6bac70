"""Sends dead letters to their deployment again, each as a frame of its own, marked so that a failure is answered as an error."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from udo_protocol.certificates import Tls
from udo_protocol.errors import PeerError, UdoError, WaitTimeout, by_code
from udo_protocol.formats.body import read_event
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.limits import OPEN_WAIT_MS
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.answers import Answers
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import ANSWER, DATA, ERROR, Failure, Frame, Header, bounded, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import LaneEnd, Push

# The node manager answers for a dead or hung operator after the answer time-out; it gets this long to do so.
_GRACE_S = 15.0
_LOOK_MS = 1000
# A full log empties at the operator's pace: retry after 1, 2 ... 50 ms.
_BUSY_INCREMENT_US, _BUSY_CEILING_US = 1_000, 50_000


@dataclass(frozen=True)
class Outcome:
    """The outcome of one letter: its answers, or the reason why it failed again."""

    answers: pa.RecordBatch | None = None
    failure: Failure | None = None


class ReplayLane:
    """A lane to one deployment; replaced after each failure, since a lane that failed takes no more frames."""

    def __init__(self, node: NodeClient, deployment: str, tls: Tls | None) -> None:
        self._node, self._deployment, self._tls = node, deployment, tls
        self._end: LaneEnd | None = None
        self._schema = pa.schema([])
        self._timeout_s = 0.0
        self._number = 0

    def send(self, letter: pb.DeadLetter) -> Outcome:
        """Send a letter and wait for the operator's answer. SchemaError if the operator no longer takes such events."""
        batch = read_event(letter.arrow)
        if self._end is None or batch.schema != self._schema:
            self._open(batch.schema)
        assert self._end is not None
        self._number += 1
        header = Header(
            lane=self._end.lane,
            number=self._number,
            kind=DATA,
            rows=1,
            schema=schema_id(to_ipc(self._schema)),
            session="replay",
            strict=True,
        )
        self._push(encode(header, batch))
        answer = self._receive()
        if answer.header.kind == ANSWER:
            schema = self._end.schema(answer.header.schema) if answer.body is not None else pa.schema([])
            return Outcome(answer.batch(schema))
        self._close()
        if answer.header.kind == ERROR:
            return Outcome(failure=bounded(answer.header.failure))
        raise PeerError(f"{self._deployment} answered a dead letter with a frame of kind {answer.header.kind}; try again")

    def _open(self, schema: pa.Schema) -> None:
        self._close()
        lane = f"replay.{secrets.token_hex(4)}"
        asked = pb.OpenLaneRequest(deployment=self._deployment, lane=lane, input_schema=to_ipc(schema), wait_ms=OPEN_WAIT_MS)
        reply = self._node.open_lane(asked)
        slot = reply.slots[0]
        conn = Connection(slot.queue_socket, run_id=slot.run_id, login=Login(slot.user, slot.password), tls=self._tls)
        self._end, self._schema, self._number = LaneEnd(conn, SlotKeys.parse(slot.prefix), lane), schema, 0
        self._answers = Answers(lane)
        self._timeout_s = reply.answer_timeout_ms / 1000 + _GRACE_S
        self._bound = reply.retained_bytes
        self._end.open(to_ipc(schema))

    def _push(self, pieces: list[bytes | bytearray | memoryview | pa.Buffer]) -> None:
        assert self._end is not None
        backoff, deadline = LinearBackoff(_BUSY_INCREMENT_US, _BUSY_CEILING_US), time.monotonic() + self._timeout_s
        while (reply := self._end.push(self._number, self._number - 1, pieces)).status in (Push.BUSY, Push.MOVED):
            if time.monotonic() > deadline:
                break
            if reply.status is Push.BUSY or not self._end.follow(reply):
                backoff.pause()
        if reply.status is not Push.ACCEPTED:
            raise PeerError(f"{self._deployment} did not take a dead letter: {reply.status}; try again")

    def _receive(self) -> Frame:
        assert self._end is not None
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if frames := self._answers.take(self._end.collect(_LOOK_MS), self._number):
                return frames[0]
            if why := self._end.status():
                raise by_code(str(why.get("code", "")), f"{self._deployment} does not serve: {why.get('message', 'no reason given')}")
        raise WaitTimeout(f"{self._deployment} has not answered a dead letter for {self._timeout_s:g} s; see: udo status")

    def _close(self) -> None:
        if self._end is not None:
            with contextlib.suppress(UdoError, OSError):
                self._end.close()
            self._end.conn.close()
            self._end = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()
