"""Runs a loaded operator over the recorded frames of a slot: the engines of production, with a file in place of the two servers.

A replay has no lease and no heartbeat, so a debugger may stop it for any length of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.recording_file import SlotRecording
from udo_protocol.formats.schema import from_ipc, schema_id, to_ipc
from udo_protocol.limits import DEFAULT
from udo_protocol.queue.frame import ADOPT, HANDOVER, PREPARE, Header, decode
from udo_protocol.state.dead_letters import FAIL
from udo_runtime.counters import Counters
from udo_runtime.engine.effects import Answer, Effect, Execute, FindSchema, FindSender, LaneOpen, Send, Steps, run
from udo_runtime.engine.replies import Replies
from udo_runtime.engine.stateless_engine import StatelessEngine
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context

_NAME = "replay"
Watch = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Answered:
    """A recorded frame (None if it cannot be decoded) and the operator's answer to it now; `answer` in the output schema."""

    seq: int
    frame: Header | None
    reply: Header
    answer: pa.RecordBatch | None


class Replay:
    """One run. `watch` wraps functions that run user code, so that a debugger sees where it fails."""

    def __init__(
        self,
        recording: SlotRecording,
        processor: Processor,
        keyed: Mapping[str, Any] | None,
        schemas: tuple[pa.Schema, pa.Schema],
        ctx: Context,
        watch: Watch,
    ) -> None:
        self._recording, self._output, self._watch = recording, schemas[1], watch
        self._schemas = {identity: from_ipc(ipc) for identity, ipc in recording.schemas().items()}
        replies = Replies(f"{ctx.operator}@{ctx.version}", _NAME, schema_id(to_ipc(schemas[1])), DEFAULT.answer_bytes)
        self._answers: list[Answer] = []
        self._steps: Callable[[int, bytes], Steps[None]]
        self._does: dict[type, Callable[[Any], Any]] = {
            Execute: lambda e: watch(e.work)(),
            FindSchema: self._schema,
            FindSender: lambda e: ("", 0),  # only the log knew the sender of a frame that cannot be decoded
            LaneOpen: lambda e: True,  # all recorded frames are replayed
            Send: lambda e: self._answers.extend(e.answers),
        }
        if keyed is None:
            processor.once = processor.named  # type: ignore[method-assign]  # a debugger is to see the event too
            stateless = StatelessEngine(processor, schemas[0], replies, FAIL, _NAME, DEFAULT, Counters())
            self._steps = lambda seq, data: self._stateless(stateless, seq, data)
            return
        # Imported only for keyed operators: a stateless one may bring its own MessagePack.
        from udo_runtime.drivers.replay_state import effects, engine

        running = engine(recording, processor, keyed, schemas, replies, ctx)
        self._does |= effects(recording, processor, keyed)
        self._steps = lambda seq, data: self._keyed(running, seq, data)

    def _stateless(self, engine: StatelessEngine, seq: int, data: bytes) -> Steps[None]:
        self._answers.append((yield from engine.frame(seq, data)))

    def _keyed(self, engine: Any, seq: int, data: bytes) -> Steps[None]:
        yield from engine.serve(seq, data)
        yield from engine.flush(seq)

    def _schema(self, effect: FindSchema) -> pa.Schema:
        if effect.identity not in self._schemas:
            raise ProtocolError(f"a frame names schema {effect.identity.hex()}, which the recording does not hold")
        return self._schemas[effect.identity]

    def run(self, wanted: Callable[[Header], bool] = lambda _: True) -> Iterator[Answered]:
        """Replay frames in order: those that cannot be decoded and those whose header is `wanted`. Frames of a node manager that prepare a
        move are left out: a move that took place ends a recording."""
        for seq, data in self._recording.frames():
            header = _header(data)
            if header is None or (header.kind not in (PREPARE, HANDOVER, ADOPT) and wanted(header)):
                yield self._answered(seq, header, data)

    def _answered(self, seq: int, header: Header | None, data: bytes) -> Answered:
        self._answers.clear()
        run(self._steps(seq, data), self._perform)
        [(_, pieces)] = self._answers
        reply = decode(b"".join(map(bytes, pieces)))
        return Answered(seq, header, reply.header, reply.batch(self._output) if reply.body is not None else None)

    def _perform(self, effect: Effect) -> Any:
        return self._does[type(effect)](effect)


def _header(data: bytes) -> Header | None:
    try:
        return decode(data).header
    except ProtocolError:
        return None
