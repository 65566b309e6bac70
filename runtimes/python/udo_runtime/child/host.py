"""The engine's control of an operator's process: handshake, requests, restarts. The engine holds the state, so a lost process costs only
its frame's time.

A process that ends is started again, with growing pauses, and its frame is sent once more; a frame that ends two processes is to blame
and fails. A process that hangs or breaks the protocol is killed, and its frame fails. Each start is bounded by the time to open, which does
not count as time to answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from udo_protocol.errors import OperatorError, ProtocolError, SchemaError, UdoError, WaitTimeout
from udo_protocol.formats.rows import as_events
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.process import Launch, Process
from udo_runtime.child.wire import VERSION, Gone, Received, Wire, encode
from udo_runtime.failure import ProcessingError, event_text
from udo_runtime.sdk.api import Context

KEYED, TIMERS, MIGRATE, REHEARSE, SHARED_MEMORY = "keyed", "timers", "migrate", "rehearse", "shared-memory"
# The operator's share of a time-out, so that the engine acts before the node manager, which would end the engine.
_SHARE = 0.8
# Pauses before a process is restarted after one that ended without an answer: the first, and the longest.
_PAUSE_S, _MOST_PAUSE_S = 0.05, 5.0
# Time for a process to stop by itself; well below an instance's own (node_manager.settings, stop_grace_s).
_STOP_S = 3.0
_LEVELS = {pb.Log.DEBUG: 10, pb.Log.INFO: 20, pb.Log.WARNING: 30, pb.Log.ERROR: 40}


class Lost(ProcessingError):
    """The operator's process ended, hung or broke the protocol; `final`: do not try the frame again."""

    final = False


class Failed(ProcessingError):
    """User code failed; `row`: the row of its input on which it failed, if known."""

    row: int | None = None

    def name_event(self, rows: pa.RecordBatch) -> None:
        """Set `event` to the one of these rows on which it failed, if that is known."""
        if self.row is not None and self.row < rows.num_rows:
            with suppress(ValueError, OverflowError, pa.ArrowException):
                self.event = event_text(as_events(rows.slice(self.row, 1))[0])


class Child:
    """An operator's process, and its successors. `needs`: capabilities that it must have."""

    def __init__(self, launch: Launch, start: pb.Start, needs: Iterable[str], ctx: Context) -> None:
        self._launch, self._start, self._needs, self._ctx = launch, start, list(needs), ctx
        self._process: Process | None = None
        self._wire: Wire | None = None
        self._id = 0
        self._said = ""  # the last lines of the process that ended most recently
        self.ends = 0  # processes that ended without being told to, or had to be killed
        self.last_end = ""  # how the last of these ended, and its last lines
        self._open_by = 0.0  # time.monotonic()
        self._lost = 0  # successive processes that ended without an answer

    def open(self, *, check: bool = False) -> None:
        """Start the process and let it open; ProcessingError with its own message and trace if it cannot. `check`: do not open."""
        self._start.check = check
        self._open_by = self._opening()
        self._up(self._open_by)

    def rehearse(self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]]) -> Received:
        """Send a request within the time to open, and only once; returns the reply. Errors as in `ask`."""
        self._up(self._open_by)
        return self._once(request, tables, self._open_by, "open_timeout_s")

    def ask(self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]]) -> Received:
        """Send a request and return the reply, unchecked. ProcessingError if it fails; its subclass Lost if the process does."""
        left_s = self._launch.answer_timeout_s * _SHARE
        try:
            self._up(self._opening())
            began = time.monotonic()
            try:
                return self._once(request, tables, began + left_s)
            finally:
                left_s -= time.monotonic() - began
        except Lost as e:
            if e.final:
                raise
        request.ClearField("parts")
        self._up(self._opening())
        return self._once(request, tables, time.monotonic() + left_s)  # a frame that ends a second process is to blame

    @property
    def pid(self) -> int:
        """The pid of its process, or of the sandbox around it; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def look_after(self) -> None:
        """Restart a process that has ended; called between requests, before the next event comes."""
        if self._process is None or not self._process.has_ended:
            return
        with suppress(ProcessingError):  # the next request tries again
            self._ended("", wait=True)
            self._up(self._opening())

    def blame(self, e: ProtocolError) -> Lost:
        """Kill the process, since its answer breaks the protocol or its schema. Returns the error to raise."""
        return self._ended(f"broke the operator protocol: {e}", code=ProtocolError.code, final=True)

    def close(self) -> None:
        """Let the process stop; kill it after a few seconds."""
        if self._wire is None:
            return
        with suppress(Gone, UdoError):
            self._call(pb.Message(stop=pb.Stop(deadline_ms=int(_STOP_S * 1000))), [], time.monotonic() + _STOP_S)
        self._let_go(_STOP_S)

    def _opening(self) -> float:
        """The deadline of a start that begins now."""
        return time.monotonic() + self._launch.open_timeout_s * _SHARE

    # -- the process's life ------------------------------------------------------------------------------------------

    def _up(self, deadline: float) -> None:
        """Make sure that there is an open process."""
        if self._wire is not None:
            return
        if self._lost > 1:
            pause_s = min(_PAUSE_S * 2 ** (self._lost - 2), _MOST_PAUSE_S)
            time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
        try:
            self._process = Process(self._launch)
            self._wire = Wire(self._process.accept(deadline), DEFAULT.answer_bytes)
            reply = self._shake_hands(deadline)
        except Gone:
            raise self._ended("", wait=True) from None
        except (OperatorError, ProtocolError, WaitTimeout) as e:
            said = self._process.last_lines if self._process is not None else ""
            self._note(f"did not start: {e}", self._process, said)
            self._let_go()
            self._lost += 1
            if isinstance(e, ProcessingError):
                raise
            raise Lost(f"the operator's process did not start: {e}", said) from e
        if reply.message.WhichOneof("kind") != "ready":
            raise self._ended("broke the operator protocol: expected Ready")

    def _shake_hands(self, deadline: float) -> Received:
        assert self._wire is not None and self._process is not None
        first = self._wire.receive(deadline).message
        if first.WhichOneof("kind") != "hello":
            raise ProtocolError("expected Hello first")
        hello = first.hello
        if not hello.oldest <= VERSION <= hello.newest:
            raise ProtocolError(
                f"it speaks versions {hello.oldest} to {hello.newest} of the operator protocol ({hello.sdk or 'unknown SDK'}), the engine "
                f"speaks {VERSION}: build it with an SDK of this version"
            )
        if lacking := [c for c in self._needs if c not in hello.capabilities]:
            raise OperatorError(
                f"its operator.toml asks for {', '.join(lacking)}, which its code lacks ({hello.sdk or 'unknown SDK'} says it can: "
                f"{', '.join(hello.capabilities) or 'nothing beyond stateless batches'})"
            )
        shares = self._process.shared is not None and SHARED_MEMORY in hello.capabilities
        del self._start.capabilities[:]
        self._start.capabilities.extend([*self._needs, *([SHARED_MEMORY] if shares else [])])
        self._wire.shared = self._process.shared if shares else None
        return self._call(pb.Message(start=self._start), [], deadline)

    def _ended(self, what: str, *, code: str = OperatorError.code, final: bool = False, wait: bool = False) -> Lost:
        """Release the process, which has ended or is killed now. Returns the error to raise."""
        self._lost += 1
        process = self._process
        how = self._let_go(1.0 if wait else 0.0)
        self._note(what or how, process, self._said)
        error = Lost(f"the operator's process {what or how}", self._said, code=code)
        error.final = final
        return error

    def _note(self, how: str, process: Process | None, said: str) -> None:
        """Report the end of a process in the log and in the counters."""
        self.ends += 1
        self.last_end = f"the operator's process{f' {process.pid}' if process else ''} {how}" + (f"\n{said}" if said else "")
        self._ctx.log.warning("%s", self.last_end.partition("\n")[0])

    def _let_go(self, wait_s: float = 0.0) -> str:
        wire, process, self._wire, self._process = self._wire, self._process, None, None
        if wire is not None:
            wire.close()
        if process is None:
            return ""
        how = process.end(wait_s)
        self._said = process.last_lines
        return how

    # -- requests ----------------------------------------------------------------------------------------------------

    def _once(
        self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]], deadline: float, limit: str = "answer_timeout_s"
    ) -> Received:
        try:
            reply = self._call(request, tables, deadline)
            self._lost = 0
            return reply
        except Gone:
            raise self._ended("", wait=True) from None
        except WaitTimeout as e:
            bound_s: float = getattr(self._launch, limit)
            what = f"hung: {e}, {bound_s * _SHARE:g} s of {bound_s:g} s (limits.{limit} in operator.toml)"
            raise self._ended(what, final=True) from None
        except ProtocolError as e:
            raise self.blame(e) from e

    def _call(self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]], deadline: float) -> Received:
        assert self._wire is not None
        self._id += 1
        request.id = self._id
        self._wire.send(encode(request, tables, self._wire.shared), deadline)
        while True:
            reply = self._wire.receive(deadline)
            kind = reply.message.WhichOneof("kind")
            if kind == "log":
                self._ctx.log.log(_LEVELS.get(reply.message.log.level, 20), "%s", reply.message.log.message)
                continue
            if reply.message.id != self._id:
                raise ProtocolError(f"expected a reply to request {self._id}, got {kind} to {reply.message.id}")
            if kind == "failure":
                raise _failed(reply.message.failure)
            return reply


def _failed(f: pb.Failure) -> Failed:
    message = f"{f.type}: {f.message}" if f.type else f.message
    error = Failed(message, f.trace, code=SchemaError.code if f.code == SchemaError.code else OperatorError.code)
    error.row = f.row if f.HasField("row") else None
    return error


def start_message(
    schemas: tuple[pa.Schema, pa.Schema], keyed: Mapping[str, Any] | None, ctx: Context, *, rehearses: bool = False
) -> pb.Start:
    """The first message to an operator's process. `keyed`: as in the manifest."""
    start = pb.Start(
        version=VERSION,
        operator=ctx.operator,
        operator_version=ctx.version,
        instance=ctx.instance,
        input=to_ipc(schemas[0]),
        output=to_ipc(schemas[1]),
        capabilities=needs(keyed, rehearses=rehearses),
        answer_bytes=DEFAULT.answer_bytes,
    )
    if keyed:
        start.keyed.columns.extend(keyed["columns"])
        start.keyed.time_column = keyed.get("time_column") or ""
        start.keyed.state_version = keyed.get("state_version", 0)
        start.keyed.migrates_from.extend(keyed.get("migrates_from", ()))
    return start


def needs(keyed: Mapping[str, Any] | None, *, rehearses: bool = False) -> list[str]:
    """The capabilities that a manifest requires. Timers are requested by the code itself."""
    found = [REHEARSE] if rehearses else []
    if keyed:
        found += [KEYED, *([MIGRATE] if keyed.get("migrates_from") else [])]
    return found
