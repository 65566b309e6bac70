"""A slot without servers: its log, answers and durable state in memory, and an engine that may die at any effect."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from udo_runtime.engine.counters import Counters
from udo_runtime.engine.effects import (
    Effect,
    Execute,
    FindSchema,
    FindSender,
    LaneOpen,
    LetterSizes,
    LoadSession,
    ReadLetters,
    ReadReplays,
    Send,
    Trim,
    WriteCheckpoint,
    run,
)
from udo_runtime.engine.keyed import Engine, Start
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.engine.replies import Replies
from udo_runtime.execution.keyed import KeyedConfig, KeyedProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.state.loading import restored
from udo_runtime.state.session import Session

from udo_protocol.limits import DEFAULT
from udo_protocol.queue.frame import Bytes, Frame, decode
from udo_protocol.queue.lane_end import Push, PushReply
from udo_protocol.state.dead_letters import DEAD, PENDING
from udo_protocol.state.pieces import StoredGroup


class Died(BaseException):
    """The engine's process is gone."""


@dataclass
class Durable:
    """What the state server holds."""

    groups: dict[tuple[str, int], tuple[bytes, bytes | None, list[bytes]]] = field(default_factory=dict)  # meta, base, deltas
    records: dict[str, Any] = field(default_factory=dict)
    letters: dict[str, dict[str, bytes]] = field(default_factory=lambda: {PENDING: {}, DEAD: {}})
    marks: dict[str, str] = field(default_factory=dict)
    seq: int = 0
    riding: Sequence[tuple[str, bytes]] = ()

    def store(self, e: WriteCheckpoint) -> None:
        for name, numbers in e.content.dropped.items():
            self.records.pop(name, None)
            for n in numbers:
                self.groups.pop((name, n), None)
        for p in e.content.pieces:
            _, base, deltas = self.groups.get((p.session, p.number), (b"", None, []))
            if p.base is not None:
                self.groups[p.session, p.number] = p.meta, p.base, []
            else:
                self.groups[p.session, p.number] = p.meta, base, [*deltas, *([] if p.delta is None else [p.delta])]
        self.records |= {name: json.loads(json.dumps(record)) for name, record in e.content.records.items()}
        changes = e.content.letters
        for where, name, body in changes.put:
            self.letters[where][str(name)] = body
        for where, wanted, name in changes.moved:
            self.letters[wanted][str(name)] = self.letters[where].pop(str(name))
        for name, epoch in changes.marks.items():
            self.marks.pop(str(name), None) if epoch is None else self.marks.update({str(name): str(epoch)})
        for where, name in changes.gone:
            self.letters[where].pop(str(name), None)
            self.marks.pop(str(name), None)
        self.seq, self.riding = e.seq, e.riding

    def session(self, name: str) -> Session:
        if name not in self.records:
            return Session(name)
        return restored(name, self.records[name], ((n, StoredGroup(*g)) for (s, n), g in self.groups.items() if s == name))


@dataclass
class MemoryLane:
    """What a LaneEnd is to an attempt; frames are answered while the slot serves."""

    slot: MemorySlot
    lane: str
    collected: int = 0

    def push(self, number: int, collected: int, frame: Iterable[Bytes]) -> PushReply:
        """Append a frame."""
        self.slot.push(frame)
        return PushReply(Push.ACCEPTED)

    def collect(self, wait_ms: int) -> list[Frame]:
        """What has been answered since the last time."""
        new = self.slot.answers[self.lane][self.collected :]
        self.collected += len(new)
        return new


class MemorySlot:
    """`operator` keyed by `columns`; `dies_at(n)` says whether the process dies at its n-th effect, counted over all processes.

    It dies before or behind what the effect does: an even number before, an odd one behind.
    """

    def __init__(
        self,
        operator: Callable[[], Operator],
        keyed: KeyedConfig,
        schemas: tuple[pa.Schema, pa.Schema],
        sent: dict[bytes, pa.Schema],
        *,
        policy: Policy | None = None,
        dies_at: Callable[[int], bool] = lambda n: False,
    ) -> None:
        self.durable, self.answers = Durable(), defaultdict[str, list[Frame]](list)
        self.moments = self.deaths = 0
        self.closed: set[str] = set()  # lanes of which nobody collects answers any more
        self._log: list[bytes] = []
        self._base, self._emitted = 1, 0
        self._operator, self._keyed, self._schemas, self._sent = operator, keyed, schemas, sent
        self._policy, self._dies_at = policy or Policy(), dies_at
        self._engine: Engine | None = None
        self._cursor = 1

    def push(self, frame: Iterable[Bytes]) -> None:
        """Append a frame."""
        self._log.append(b"".join(map(bytes, frame)))

    def lane(self, name: str) -> MemoryLane:
        """A lane of this slot."""
        return MemoryLane(self, name)

    def serve(self, read: int = 16) -> None:
        """Answer all that was pushed, `read` frames at a time, by as many processes as it takes."""
        while self._emitted < self._base + len(self._log) - 1 or self._engine is None:
            try:
                self._step(read)
            except Died:
                self._engine = None
                self.deaths += 1

    def die(self) -> None:
        """Between two frames."""
        self._engine = None

    def _step(self, read: int) -> None:
        if self._engine is None:
            self._cursor = self._begin()
        assert self._cursor >= self._base, "frames that are needed have left the log"
        frames = self._log[self._cursor - self._base :][:read]
        assert self._engine is not None
        for seq, data in enumerate(frames, self._cursor):
            run(self._engine.serve(seq, data), self._perform)
        if frames:
            run(self._engine.flush(self._cursor + len(frames) - 1), self._perform)
        self._cursor += len(frames)

    def _begin(self) -> int:
        processor = KeyedProcessor(self._operator(), self._keyed, self._schemas[1], Context("t", "1"))
        processor.policy = self._policy
        replies, letters = Replies("t@1", "i", b"schema"), KeyedLetters("t", DEFAULT)
        self._engine = Engine(processor, self._schemas, replies, letters, DEFAULT, Counters(), clock=lambda: 0.0)
        self._engine.restart(Start(letters=self._sizes()))
        return run(self._engine.take(self.durable.seq, self.durable.riding, self._emitted), self._perform)

    def _sizes(self) -> dict[str, dict[str, int]]:
        return {where: {name: len(body) for name, body in bodies.items()} for where, bodies in self.durable.letters.items()}

    def _perform(self, effect: Effect) -> Any:
        self._moment()
        result = self._do(effect)
        self._moment()
        return result

    def _moment(self) -> None:
        self.moments += 1
        if self._dies_at(self.moments - 1):
            raise Died

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Execute():
                return effect.work()
            case FindSchema():
                return self._sent[effect.identity]
            case LaneOpen():
                return effect.lane not in self.closed
            case FindSender():
                return "?", 0
            case LoadSession():
                return self.durable.session(effect.name)
            case Send():
                assert effect.first == self._emitted + 1, "answered out of turn"
                for lane, pieces in effect.answers:
                    self.answers[lane].append(decode(b"".join(map(bytes, pieces))))
                self._emitted += len(effect.answers)
            case WriteCheckpoint():
                assert effect.seq <= effect.emitted + len(effect.riding), "a checkpoint ahead of the answers"
                assert effect.emitted == self._emitted
                self.durable.store(effect)
            case Trim():
                assert self._base - 1 <= effect.seq <= self.durable.seq, "trimmed what no durable state covers"
                del self._log[: effect.seq + 1 - self._base]
                self._base = effect.seq + 1
            case ReadReplays():
                return dict(self.durable.marks)
            case ReadLetters():
                return [self.durable.letters[DEAD].get(str(name)) for name in effect.names]
            case LetterSizes():
                return self._sizes()
            case _:
                raise AssertionError(f"a keyed engine asked for {effect}")
        return None
