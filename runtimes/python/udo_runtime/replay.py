"""Runs a loaded operator over recorded frames: the very loop of an instance, with a file in place of the two servers.

Nothing here has a lease or a heartbeat, so a debugger may stop it for as long as somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udo_protocol import keys
from udo_protocol.errors import ProtocolError
from udo_protocol.frame import Bytes, Header, decode
from udo_protocol.limits import DEFAULT
from udo_protocol.recording_file import Recording
from udo_protocol.slot_reader import Emit, Read, SlotReader
from udo_runtime.api import Context
from udo_runtime.instance import Instance
from udo_runtime.load import Processor

_PREFIX = keys.prefix("replay", 0)
Watch = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Answered:
    """A recorded frame (None if it cannot be decoded) and what the operator answers to it now; `answer` in the output schema."""

    seq: int
    frame: Header | None
    reply: Header
    answer: pa.RecordBatch | None


class _Schemas:
    """What a Connection is asked for: the recorded schemas, and lanes that had failed before."""

    def __init__(self, schemas: dict[bytes, bytes], failed: Sequence[str]) -> None:
        self._known = {f"{_PREFIX}schema:".encode() + identity: ipc for identity, ipc in schemas.items()}
        self._failed = [lane.encode() for lane in failed]

    def call(self, command: str, key: bytes, *values: bytes) -> Any:
        if command == "SET":
            self._known[key] = values[0]
            return b"OK"
        return self._known.get(key) if command == "GET" else self._failed

    def transaction(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.call(*command) for command in commands]


class _Reader(SlotReader):
    """Keeps what is answered; nobody else owns this slot."""

    answers: list[tuple[str, Sequence[Bytes]]]

    def send_emit(
        self, first: int, answers: Sequence[tuple[str, Sequence[Bytes]]], *, trim: bool = True, failed: bool = False, hold: bool = False
    ) -> None:
        self.answers = [*self.answers, *answers]

    def emit_reply(self) -> Emit:
        return Emit.EMITTED

    def trim(self, seq: int) -> Emit:
        return Emit.TRIMMED

    def sender(self, seq: int) -> tuple[str, int]:
        return "", 0  # of a frame that cannot be decoded only the log knew


class Replay:
    """One run. `watch` wraps what runs user code, so that a debugger sees where it fails."""

    def __init__(
        self,
        recording: Recording,
        processor: Processor,
        keyed: dict[str, Any] | None,
        schemas: tuple[pa.Schema, pa.Schema],
        ctx: Context,
        watch: Watch,
    ) -> None:
        self._recording, self._output = recording, schemas[1]
        conn: Any = _Schemas(recording.schemas(), recording.header["failed"])
        self._reader = _Reader(conn, _PREFIX, "replay", 0)
        self._reader.answers = []
        processor.once = watch(processor.named)  # type: ignore[method-assign]
        arguments = (conn, self._reader, processor, schemas, f"{ctx.operator}@{ctx.version}", DEFAULT)
        first = recording.header["first_seq"]
        if keyed is None:
            self._instance = Instance(*arguments)
            return
        # Only here: a stateless operator may bring a MessagePack of its own.
        from udo_runtime.replay_state import keyed_instance

        self._instance = keyed_instance(arguments, recording, processor, keyed, ctx, watch)
        self._instance._begin(Read(first, (), first, first - 1, 0))

    def run(self, wanted: Callable[[Header], bool] = lambda _: True) -> Iterator[Answered]:
        """Feed the frames in order, those that cannot be decoded and those whose header is `wanted`."""
        for seq, data in self._recording.frames():
            header = _header(data)
            if header is None or wanted(header):
                yield self._answered(seq, header, data)

    def _answered(self, seq: int, header: Header | None, data: bytes) -> Answered:
        self._reader.answers = []
        self._instance._answer_all(seq, [data])
        [(_, pieces)] = self._reader.answers
        reply = decode(b"".join(map(bytes, pieces)))
        return Answered(seq, header, reply.header, reply.batch(self._output) if reply.body is not None else None)


def _header(data: bytes) -> Header | None:
    try:
        return decode(data).header
    except ProtocolError:
        return None
