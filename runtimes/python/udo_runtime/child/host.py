"""The engine's hold on an operator's process: handshake, requests, restarts. State is the engine's, so a process that is lost costs nothing
but its frame's time.

A process that ends is started again, with growing pauses, and the frame sent once more; a frame that ends two of them is to blame and
fails. One that hangs or breaks the protocol is ended, and its frame fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from udo_protocol.errors import OperatorError, ProtocolError, SchemaError, UdoError, WaitTimeout
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.process import Launch, Process
from udo_runtime.child.wire import VERSION, Gone, Received, Wire, encode
from udo_runtime.execution.failure import ProcessingError
from udo_runtime.sdk.api import Context

KEYED, TIMERS, MIGRATE, REHEARSE, SHARED_MEMORY = "keyed", "timers", "migrate", "rehearse", "shared-memory"
# The part of a time-out that the operator has: the node manager, which ends the engine, is to come second.
_SHARE = 0.8
# Pauses before a process is started again after one that ended without an answer: as long as it takes, at most.
_PAUSE_S, _MOST_PAUSE_S = 0.05, 5.0
# To leave in peace; well below the time that an instance has for it (node_manager.settings, stop_grace_s).
_STOP_S = 3.0
_LEVELS = {pb.Log.DEBUG: 10, pb.Log.INFO: 20, pb.Log.WARNING: 30, pb.Log.ERROR: 40}


class Lost(ProcessingError):
    """The operator's process ended, hung or broke the protocol; `final`: there is no use in trying that frame again."""

    final = False


class Failed(ProcessingError):
    """User code failed; `row`: on which one of what it was given, if it says so."""

    row: int | None = None


class Child:
    """An operator's process, and its successors. `needs`: capabilities without which it is refused."""

    def __init__(self, launch: Launch, start: pb.Start, needs: Iterable[str], ctx: Context) -> None:
        self._launch, self._start, self._needs, self._ctx = launch, start, list(needs), ctx
        self._process: Process | None = None
        self._wire: Wire | None = None
        self._id = 0
        self._said = ""  # the last lines of the process that ended last
        self.ends = 0  # processes that ended without being told to, or had to be ended
        self.last_end = ""  # how the last one of these did, and its last lines
        self._open_by = 0.0  # of time.monotonic()
        self._lost = 0  # processes in a row that ended without an answer

    def open(self, *, check: bool = False) -> None:
        """Start it and let it open; ProcessingError with its own message and trace if it cannot. With `check` it is not to open."""
        self._start.check = check
        self._open_by = time.monotonic() + self._launch.open_timeout_s * _SHARE
        self._up(self._open_by)

    def rehearse(self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]]) -> Received:
        """Its reply, within the time that there is to open; nothing is sent twice. ProcessingError as of `ask`."""
        return self._once(request, tables, self._open_by, "open_timeout_s")

    def ask(self, request: pb.Message, tables: Sequence[tuple[int, pa.RecordBatch]]) -> Received:
        """Its reply, as it came. ProcessingError says how it failed, Lost (one of them) how its process did."""
        deadline = time.monotonic() + self._launch.answer_timeout_s * _SHARE
        try:
            return self._once(request, tables, deadline)
        except Lost as e:
            if e.final:
                raise
        request.ClearField("parts")
        return self._once(request, tables, deadline)  # a frame that ends another one is to blame

    @property
    def pid(self) -> int:
        """Of its process, or of what confines that; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def look_after(self) -> None:
        """Between requests: one that has ended is started again, before the next event comes."""
        if self._process is None or not self._process.has_ended:
            return
        with suppress(ProcessingError):  # then the next request tries
            self._ended("", wait=True)
            self._up(time.monotonic() + self._launch.answer_timeout_s * _SHARE)

    def blame(self, e: ProtocolError) -> Lost:
        """What it answered is not what the protocol, or its schema, says: the process is ended. -> what to raise."""
        return self._ended(f"broke the operator protocol: {e}", code=ProtocolError.code, final=True)

    def close(self) -> None:
        """Let it leave in peace; it is ended after a few seconds."""
        if self._wire is None:
            return
        with suppress(Gone, UdoError):
            self._call(pb.Message(stop=pb.Stop(deadline_ms=int(_STOP_S * 1000))), [], time.monotonic() + _STOP_S)
        self._let_go(_STOP_S)

    # -- its life ----------------------------------------------------------------------------------------------------

    def _up(self, deadline: float) -> None:
        """There is one that is open."""
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
        """The process is over, or is ended now. -> what to raise."""
        self._lost += 1
        process = self._process
        how = self._let_go(1.0 if wait else 0.0)
        self._note(what or how, process, self._said)
        error = Lost(f"the operator's process {what or how}", self._said, code=code)
        error.final = final
        return error

    def _note(self, how: str, process: Process | None, said: str) -> None:
        """What dies is seen: in the log, and in the counters."""
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
        self._up(deadline)
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


def start_message(schemas: tuple[pa.Schema, pa.Schema], keyed: dict[str, Any] | None, ctx: Context, *, rehearses: bool = False) -> pb.Start:
    """What an operator's process is told first. `keyed`: as in the manifest."""
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


def needs(keyed: dict[str, Any] | None, *, rehearses: bool = False) -> list[str]:
    """The capabilities that a manifest asks for. Timers are asked for by the code itself."""
    found = [REHEARSE] if rehearses else []
    if keyed:
        found += [KEYED, *([MIGRATE] if keyed.get("migrates_from") else [])]
    return found
