"""Serves a Python operator over the operator protocol (docs/operator-protocol.md): one request at a time, each answered once."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udo_protocol.cut import cut
from udo_protocol.errors import ProtocolError, SchemaError
from udo_protocol.formats import body
from udo_protocol.formats.rows import as_events
from udo_protocol.formats.schema import from_ipc
from udo_protocol.limits import DEFAULT, MESSAGE_CHARS
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime import children
from udo_runtime.child import shared
from udo_runtime.child.host import SHARED_MEMORY
from udo_runtime.child.process import DIRECTORY, SOCKET
from udo_runtime.child.wire import VERSION, Gone, Received, Wire, encode
from udo_runtime.execution.gathered import FIRST, GatheredAnswers, taking, too_large
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError, explained, own_traceback
from udo_runtime.sdk.api import Context, Operator

if TYPE_CHECKING:
    from udo_runtime.served.touched_keys import TouchedKeys

SDK = "python 0.1.0"
Table = tuple[int, pa.RecordBatch]
# The largest body whose length can be sent, as a number of 32 bits.
_MOST_BODY_BYTES = 2**32 - 1
_LEVELS = {10: pb.Log.DEBUG, 20: pb.Log.INFO, 30: pb.Log.WARNING, 40: pb.Log.ERROR, 50: pb.Log.ERROR}


def serve(target: Operator | Callable[[pa.RecordBatch], Any] | ProcessingError) -> None:
    """Serve until the engine stops this process or is gone. `target`: an operator, or why it could not be loaded."""
    children.answer_signals(lambda: None)  # the engine says when to stop
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ[SOCKET])
    wire = Wire(sock, DEFAULT.frame_bytes + DEFAULT.answer_bytes)
    logging.basicConfig(level=logging.INFO, handlers=[_Logs(wire)])
    memory = shared.given()
    capabilities = [*_capabilities(target), *([SHARED_MEMORY] if memory is not None else [])]
    hello = pb.Hello(oldest=VERSION, newest=VERSION, capabilities=capabilities, sdk=SDK)
    wire.send(encode(pb.Message(hello=hello)), None)
    server = Server(target)
    while True:
        try:
            request = wire.receive(None)
            if request.message.HasField("start") and SHARED_MEMORY in request.message.start.capabilities:
                wire.shared = memory
            reply, tables = server.answer(request)
            children.end_if_forked()
            reply.id = request.message.id
            wire.send(server.encoded(reply, tables, wire.shared), None)
        except Gone:
            return
        except ProtocolError as e:  # neither this message nor later ones can be read
            raise SystemExit(f"the engine broke the operator protocol: {e}") from None
        if reply.HasField("bye"):
            return


def _capabilities(target: Any) -> list[str]:
    if isinstance(target, ProcessingError):  # no capability must seem to be missing: Start is to be answered with the error
        return ["keyed", "timers", "migrate", "rehearse"]
    kinds = ("process", "process_keys")
    if not isinstance(target, Operator) or all(getattr(type(target), kind) is getattr(Operator, kind) for kind in kinds):
        return ["rehearse"]
    migrates = type(target).migrate is not Operator.migrate
    return ["keyed", "timers", *(["migrate"] if migrates else []), "rehearse"]


class Server:
    """Serves one operator, as Start configures it; `answer` never raises because of user code."""

    def __init__(self, target: Operator | Callable[[pa.RecordBatch], Any] | ProcessingError) -> None:
        self._target = target
        self._row: int | None = None  # the row being processed, if rows are processed one by one
        self._bound = _MOST_BODY_BYTES  # bound of an answer

    def answer(self, request: Received) -> tuple[pb.Message, Sequence[Table]]:
        """The reply to a request, without its id."""
        kind = request.message.WhichOneof("kind")
        self._row = None
        try:
            match kind:
                case "start":
                    return pb.Message(ready=self._start(request.message.start)), ()
                case "data":
                    return pb.Message(answer=pb.Answer()), self._data(request, request.message.data)
                case "rehearse":
                    return pb.Message(answer=pb.Answer()), self._data(request, request.message.rehearse)
                case "timers":
                    return pb.Message(answer=pb.Answer()), self._timers(request)
                case "migrate":
                    return pb.Message(answer=pb.Answer()), self._migrate(request)
                case "ping":
                    return pb.Message(ping=pb.Ping()), ()
                case "stop":
                    self._processor.close()
                    return pb.Message(bye=pb.Bye()), ()
            raise TypeError(f"this SDK ({SDK}) does not know the request {kind}")
        except BaseException as e:
            children.end_if_forked(e)
            return pb.Message(failure=self._failure(e)), ()

    def encoded(self, reply: pb.Message, tables: Sequence[Table], memory: shared.SharedMemory | None) -> list[bytes | pa.Buffer]:
        """The reply as pieces to be sent; a Failure in place of an answer larger than Start allows, wherever its tables are."""
        pieces = encode(reply, tables, memory)
        rows = {kind: batch.num_rows for kind, batch in tables}
        try:
            size = sum(part.bytes + -part.bytes % 8 for part in reply.parts)
            if size > self._bound:
                raise too_large(rows.get(pb.Part.ROWS, 0), size, self._bound, rows.get(pb.Part.STATES, 0))
        except ProcessingError as e:
            self._row = None
            return encode(pb.Message(id=reply.id, failure=self._failure(e)))
        return pieces

    def _start(self, start: pb.Start) -> pb.Ready:
        if isinstance(self._target, ProcessingError):
            raise self._target
        self._input, self._output = from_ipc(start.input), from_ipc(start.output)
        self._take = taking(self._output)
        self._bound = min(start.answer_bytes or _MOST_BODY_BYTES, _MOST_BODY_BYTES)
        directory = Path(os.environ.get(DIRECTORY, "."))
        self._ctx = Context(start.operator, start.operator_version, start.instance, directory)
        self._processor = Processor(self._target, self._output, self._ctx)
        self._is_keyed = start.HasField("keyed")
        if not self._is_keyed:
            self._processor.require_stateless()
        begun = time.perf_counter()
        if not start.check:
            self._processor.open()
        return pb.Ready(open_ms=(time.perf_counter() - begun) * 1000)

    def _data(self, request: Received, data: pb.Data) -> list[Table]:
        batch = body.read(request.tables[pb.Part.EVENTS], self._input, None)
        if self._is_keyed:
            return self._keyed(request, data, batch)
        if not self._processor.by_event:
            return [(pb.Part.ROWS, self._processor.once(batch))]
        process = self._processor.per_event.process
        return [(pb.Part.ROWS, self._each(as_events(batch), lambda row, event: process(event, self._ctx)))]

    def _keyed(self, request: Received, data: pb.Data, batch: pa.RecordBatch) -> list[Table]:
        keys = self._touched(request, data.watermark_us if data.HasField("watermark_us") else None)
        if self._processor.by_frame:
            return [(pb.Part.ROWS, self._processor.whole_keyed(*keys.frame(request, batch), keys.ctx)), *keys.changes()]
        index, operator = keys.index(request).to_pylist(), self._processor.per_event

        def process(row: int, event: dict[str, Any]) -> Any:
            keys.at(index[row])
            yield from operator.process(event, keys.ctx) or ()
            keys.ctx._keep()

        return [(pb.Part.ROWS, self._each(as_events(batch), process)), *keys.changes()]

    def _timers(self, request: Received) -> list[Table]:
        keys = self._touched(request, request.message.timers.watermark_us)
        due, operator = keys.due(request), self._processor.per_event

        def fire(row: int, _: Any) -> Any:
            number, at = due[row]
            keys.at(number)
            yield from operator.on_timer(keys.ctx.key, at, keys.ctx) or ()
            keys.ctx._keep()

        rows = self._each([None] * len(due), fire)
        return [(pb.Part.ROWS, rows), *keys.changes()]

    def _migrate(self, request: Received) -> list[Table]:
        keys, operator = self._touched(request, None), self._processor.per_event
        for self._row, state in enumerate(keys.states):
            keys.states[self._row] = operator.migrate(state, request.message.migrate.from_version)
        return keys.changes(everything=True)

    def _touched(self, request: Received, watermark_us: int | None) -> TouchedKeys:
        from udo_runtime.served.touched_keys import TouchedKeys  # needs MessagePack; a stateless operator may bring its own version

        return TouchedKeys(request, self._ctx, watermark_us)

    def _each(self, items: Sequence[Any], process: Callable[[int, Any], Any]) -> pa.RecordBatch:
        names, out, room, take = set(self._output.names), GatheredAnswers(self._output, self._bound), FIRST, self._take
        for self._row, item in enumerate(items):
            for answer in process(self._row, item) or ():
                if not isinstance(answer, dict) or answer.keys() != names:
                    got = ", ".join(sorted(answer)) if isinstance(answer, dict) else type(answer).__name__
                    want = ", ".join(self._output.names)
                    raise ProcessingError(f"expected an event with the columns {want}; the operator answered {got}", code=SchemaError.code)
                out.append(take(answer))
                if len(out) >= room:
                    room = out.pack()
        self._row = None
        return out.batch()

    def _failure(self, e: BaseException) -> pb.Failure:
        if isinstance(e, ProcessingError):
            failure = pb.Failure(message=str(e), trace=e.traceback, code="schema" if e.wire_code == SchemaError.code else "")
        else:
            name = type(e).__name__
            failure = pb.Failure(type=name, message=explained(e).removeprefix(f"{name}: "), trace=own_traceback(e))
        if self._row is not None:
            failure.row = self._row
        return failure


class _Logs(logging.Handler):
    """Sends log records to the engine; those of a forked process, which must not write to this one's connection, to standard error."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire, self._pid = wire, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:
            sys.stderr.write(record.getMessage() + "\n")
            return
        level = _LEVELS.get(record.levelno, pb.Log.INFO)
        self._wire.send(encode(pb.Message(log=pb.Log(level=level, message=cut(record.getMessage(), MESSAGE_CHARS)))), None)
