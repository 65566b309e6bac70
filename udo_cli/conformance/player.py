"""The engine's end of the operator protocol, played for one process: sends each message as a case wants it, and validates each reply."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from udo_runtime.child.host import SHARED_MEMORY, needs, start_message
from udo_runtime.child.keys import changes
from udo_runtime.child.process import Launch, Process
from udo_runtime.child.wire import INDEX, KEYS, TIMES, Gone, Received, Wire, encode
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import pack, unpack

from udo_protocol.errors import ProtocolError
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import operator_pb2 as pb

# (directory of the process, variables for it) -> its launch.
Starting = Callable[[str, Mapping[str, str]], Launch]
Rows = list[dict[str, Any]]
Table = tuple[int, pa.RecordBatch]
# The keyed part of a manifest, for the conformance operator's columns.
KEYED = {"columns": ["k"], "time_column": "at", "state_version": 2, "migrates_from": [1]}
# Bound of an operator's start (a JVM takes half a second).
_OPEN_S = 60.0
# Time for the process to end by itself.
STOP_S = 10.0


class Mismatch(Exception):
    """The operator does not behave as the case expects."""


class AnsweredFailure(Exception):
    """The operator answered Failure."""

    def __init__(self, failure: pb.Failure) -> None:
        super().__init__(f"Failure {failure.type}: {failure.message}")
        self.failure = failure


def require(what: str, want: object, got: object) -> None:
    """Mismatch unless `want` and `got` are equal."""
    if want != got:
        raise Mismatch(f"{what}: expected {want!r:.400}, got {got!r:.400}")


@dataclass(frozen=True)
class Known:
    """A key, its packed state, and the time at which the state expires."""

    key: Any
    state: bytes | None = None
    expires_us: int | None = None


@dataclass(frozen=True)
class Answer:
    """A validated answer: rows; by row of KEYS the new packed state and its expiration; timers as (row of KEYS, µs)."""

    rows: pa.RecordBatch
    states: dict[int, tuple[bytes | None, int | None]] = field(default_factory=dict)
    timers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def values(self) -> dict[int, Any]:
        """The unpacked states, by row."""
        return {row: None if state is None else unpack(state) for row, (state, _) in sorted(self.states.items())}


def starting(command: Sequence[str]) -> Starting:
    """Start a program of this machine without isolation, in the current folder and environment."""
    return lambda directory, env: Launch(tuple(command), os.getcwd(), directory, {**os.environ, **env})


class Player:
    """One process, from its start to its end. `timeout_s` bounds each reply."""

    def __init__(self, start: Starting, role: str, env: Mapping[str, str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._directory = tempfile.TemporaryDirectory(prefix="udo-conformance-", ignore_cleanup_errors=True)
        try:
            self.process = Process(start(self._directory.name, {**env, "UDO_CONFORMANCE": role}))
        except BaseException:  # the caller has no player to close yet
            self._directory.cleanup()
            raise
        self.logs: list[tuple[int, str]] = []
        self._wire: Wire | None = None
        self._id = 0

    def hello(self) -> pb.Hello:
        """Return the operator's first message."""
        deadline = time.monotonic() + _OPEN_S
        self._wire = Wire(self.process.accept(deadline), DEFAULT.answer_bytes)
        first = self._wire.receive(deadline).message
        require("the first message", "hello", first.WhichOneof("kind"))
        return first.hello

    def start(
        self,
        schemas: tuple[pa.Schema, pa.Schema],
        keyed: dict[str, Any] | None = None,
        *,
        check: bool = False,
        unknown: bytes = b"",
        shares: bool = True,
        answer_bytes: int = DEFAULT.answer_bytes,
    ) -> None:
        """Exchange Hello, Start and Ready. `unknown`: serialised fields that no version knows; `shares`: share memory if both can."""
        require("whether it speaks version 1", True, (hello := self.hello()).oldest <= 1 <= hello.newest)
        self._schemas = schemas
        message = start_message(schemas, keyed, Context("conformance", "1"))
        message.check, message.answer_bytes = check, answer_bytes
        message.MergeFromString(unknown)
        require("capabilities that it lacks", [], [c for c in needs(keyed) if c not in hello.capabilities])
        if shares and self.process.shared is not None and SHARED_MEMORY in hello.capabilities:
            assert self._wire is not None
            message.capabilities.append(SHARED_MEMORY)
            self._wire.shared = self.process.shared
        reply = self.ask(pb.Message(start=message), deadline=time.monotonic() + _OPEN_S)
        require("the reply to Start", "ready", reply.message.WhichOneof("kind"))

    def ask(self, message: pb.Message, tables: Sequence[Table] = (), deadline: float | None = None) -> Received:
        """Send a request and return the reply; AnsweredFailure if the reply is a Failure."""
        self.send(message, tables)
        return self.reply(deadline)

    def send(self, message: pb.Message, tables: Sequence[Table] = ()) -> None:
        """Send a request without waiting for the reply."""
        message.ClearField("parts")
        self.send_bare(message, tables)

    def send_bare(self, message: pb.Message, tables: Sequence[Table] = ()) -> None:
        """As `send`, but keep the parts that the message has already."""
        assert self._wire is not None
        self._id += 1
        message.id = self._id
        self._wire.send(encode(message, tables, self._wire.shared), time.monotonic() + self._timeout_s)

    @property
    def shares(self) -> bool:
        """Whether shared memory was agreed on."""
        return self._wire is not None and self._wire.shared is not None

    def reply(self, deadline: float | None = None, number: int = 0) -> Received:
        """The next reply, which must be to the last request, or to request `number`."""
        assert self._wire is not None
        while True:
            reply = self._wire.receive(deadline or time.monotonic() + self._timeout_s)
            kind = reply.message.WhichOneof("kind")
            if kind != "log":
                break
            self.logs.append((reply.message.log.level, reply.message.log.message))
        require("the id of the reply", number or self._id, reply.message.id)
        if kind == "failure":
            raise AnsweredFailure(reply.message.failure)
        return reply

    # -- stateless ---------------------------------------------------------------------------------------------------

    def data(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The answer to stateless events."""
        return self.answered(pb.Data(), [(pb.Part.EVENTS, batch)], 0).rows

    def fails(self, batch: pa.RecordBatch) -> pb.Failure:
        """The Failure that the operator answers to stateless events."""
        try:
            rows = self.data(batch)
        except AnsweredFailure as e:
            return e.failure
        raise Mismatch(f"expected Failure, got an answer of {rows.num_rows} rows")

    # -- keyed -------------------------------------------------------------------------------------------------------

    def keyed(self, batch: pa.RecordBatch, keys: Sequence[Known], watermark_us: int | None = None) -> Answer:
        """The answer to keyed events; each value of their column `k` is one of `keys`."""
        return self.answered(pb.Data(watermark_us=watermark_us), keyed_tables(batch, keys), len(keys))

    def answered(self, data: pb.Data, tables: Sequence[Table], keys: int) -> Answer:
        """The answer to a request from these parts."""
        return self._answer(self.ask(pb.Message(data=data), tables), keys)

    def rehearsed(self, tables: Sequence[Table], keys: int) -> Answer:
        """The answer to events that are only rehearsed."""
        return self._answer(self.ask(pb.Message(rehearse=pb.Data()), tables), keys)

    def timers(self, due: Sequence[tuple[int, int]], keys: Sequence[Known], watermark_us: int) -> Answer:
        """The answer to timers: (row of `keys`, µs)."""
        times = pa.RecordBatch.from_pydict({"key": [row for row, _ in due], "at_us": [at for _, at in due]}, schema=TIMES)
        request = pb.Message(timers=pb.Timers(watermark_us=watermark_us))
        return self._answer(self.ask(request, [(pb.Part.DUE, times), (pb.Part.KEYS, _keys(keys))]), len(keys))

    def migrate(self, keys: Sequence[Known], version: int) -> Answer:
        """The answer to states of another version."""
        request = pb.Message(migrate=pb.Migrate(from_version=version))
        return self._answer(self.ask(request, [(pb.Part.KEYS, _keys(keys))]), len(keys))

    def _answer(self, reply: Received, keys: int) -> Answer:
        require("the kind of reply", "answer", reply.message.WhichOneof("kind"))
        rows = reply.table(pb.Part.ROWS, self._schemas[1])
        found = changes(reply, keys)
        states = {row: (state, expires) for row, state, expires in found.states}
        return Answer(pa.RecordBatch.from_pylist([], schema=self._schemas[1]) if rows is None else rows, states, found.timers)

    # -- its end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send Stop; the operator must answer Bye and end by itself with status 0."""
        reply = self.ask(pb.Message(stop=pb.Stop(deadline_ms=int(STOP_S * 1000))))
        require("the reply to Stop", "bye", reply.message.WhichOneof("kind"))
        require("how it ended", "ended with exit status 0", self.process.end(STOP_S))

    def hang_up(self) -> None:
        """Close the connection without ending the process."""
        assert self._wire is not None
        self._wire.close()
        self._wire = None

    def close(self) -> None:
        """End the operator and remove its files, whatever state it is in."""
        if self._wire is not None:
            self._wire.close()
        self.process.end()
        self._directory.cleanup()


def keyed_tables(batch: pa.RecordBatch, keys: Sequence[Known]) -> list[Table]:
    """The tables EVENTS, INDEX and KEYS of a request."""
    rows = {known.key: row for row, known in enumerate(keys)}
    index = pa.RecordBatch.from_pydict({"key": [rows[k] for k in batch.column("k").to_pylist()]}, schema=INDEX)
    return [(pb.Part.EVENTS, batch), (pb.Part.INDEX, index), (pb.Part.KEYS, _keys(keys))]


def _keys(keys: Sequence[Known]) -> pa.RecordBatch:
    columns = {"key": [pack(k.key) for k in keys], "state": [k.state for k in keys], "expires_us": [k.expires_us for k in keys]}
    return pa.RecordBatch.from_pydict(columns, schema=KEYS)


def said(e: Exception) -> str:
    """The reason why a case failed, in words."""
    match e:
        case Mismatch() | AnsweredFailure():
            return str(e)
        case Gone():
            return "it ended, or closed its connection"
        case ProtocolError():
            return f"it broke the protocol: {e}"
    return f"{type(e).__name__}: {e}"
