"""A slot without servers: its log, answers and durable state in memory, and an engine that may die at any effect."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from udo_runtime.counters import Counters
from udo_runtime.engine.effects import (
    Effect,
    Execute,
    FindSchema,
    FindSender,
    FindTold,
    FreeGroups,
    HandOver,
    LaneOpen,
    LetterSizes,
    LoadAdopted,
    LoadSession,
    ReadLetters,
    ReadReplays,
    Send,
    TakeIn,
    Trim,
    WriteCheckpoint,
    run,
)
from udo_runtime.engine.keyed_engine import Engine, Start
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.engine.replies import Replies
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.state.adopted import Adopted
from udo_runtime.state.session import Session
from udo_runtime.state.stored_session import restored
from udo_runtime.state.versions import Versions

from udo_protocol.formats.state_types import StateTypes
from udo_protocol.limits import DEFAULT
from udo_protocol.queue.frame import ADOPT, HANDOVER, PREPARE, Bytes, Frame, Header, decode, encode
from udo_protocol.queue.lane_end import Push, PushReply
from udo_protocol.state import session_record
from udo_protocol.state.dead_letters import DEAD, PENDING, parse_name
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.session_record import SessionRecord


class Died(BaseException):
    """The engine's process has died."""


@dataclass
class Durable:
    """The contents of the state server."""

    groups: dict[tuple[str, int], StoredGroup] = field(default_factory=dict)
    records: dict[str, SessionRecord] = field(default_factory=dict)
    letters: dict[str, dict[str, bytes]] = field(default_factory=lambda: {PENDING: {}, DEAD: {}})
    marks: dict[str, str] = field(default_factory=dict)
    seq: int = 0
    riding: Sequence[tuple[str, bytes]] = ()
    handed_over: dict[int, Durable] = field(default_factory=dict)  # by version of the map: state that has left the slot
    to_adopt: dict[int, Durable] = field(default_factory=dict)

    def store(self, e: WriteCheckpoint) -> None:
        if isinstance(e.moving, TakeIn):  # the changes are to the delivered state
            self._take_in(self.to_adopt.pop(e.moving.version, Durable()))
        for name, numbers in e.content.dropped.items():
            self.records.pop(name, None)
            for n in numbers:
                self.groups.pop((name, n), None)
        for p in e.content.pieces:
            base, deltas = p.base, list[bytes]()
            if p.base is None and (found := self.groups.get((p.session, p.number))):
                base, deltas = found.base, found.deltas
            if p.delta is not None and p.place.changes:
                deltas = [*deltas, p.delta]
            self.groups[p.session, p.number] = StoredGroup(p.meta, base, deltas, p.place)
        self.records |= {name: SessionRecord.of(json.loads(session_record.text(record, 0.0))) for name, record in e.content.records.items()}
        changes = e.content.letters
        for where, name, body in changes.put:
            self.letters[where][str(name)] = body
        for where, wanted, name in changes.moved:
            self.letters[wanted][str(name)] = self.letters[where].pop(str(name))
        self.letters[DEAD] |= {str(name): body for name, body in changes.failed.items() if str(name) in self.letters[DEAD]}
        for name, epoch in changes.marks.items():
            self.marks.pop(str(name), None) if epoch is None else self.marks.update({str(name): str(epoch)})
        for where, name in changes.gone:
            self.letters[where].pop(str(name), None)
            self.marks.pop(str(name), None)
        if isinstance(e.moving, HandOver):
            self.handed_over[e.moving.version] = self._apart(e.moving.groups)
        self.seq, self.riding = e.seq, e.riding

    def _apart(self, numbers: Sequence[int]) -> Durable:
        apart = Durable(records=dict(self.records))
        for session, n in list(self.groups):
            if n in numbers:
                apart.groups[session, n] = self.groups.pop((session, n))
            elif n < 0:
                apart.groups[session, n] = self.groups[session, n]
        for where, bodies in self.letters.items():
            for name in [name for name in bodies if getattr(parse_name(name), "group", None) in numbers]:
                apart.letters[where][name] = bodies.pop(name)
        return apart

    def _take_in(self, other: Durable) -> None:
        self.groups = {**other.groups, **self.groups}
        self.records = {**other.records, **self.records}
        for where, bodies in other.letters.items():
            self.letters[where] |= bodies

    def session(self, name: str, versions: Versions | None = None) -> Session:
        if name not in self.records:
            return Session(name, versions=versions)
        return restored(name, self.records[name], ((n, g) for (s, n), g in self.groups.items() if s == name), versions)


@dataclass
class MemoryLane:
    """Stands in for an attempt's LaneEnd; frames are answered while the slot serves."""

    slot: MemorySlot
    lane: str
    collected: int = 0

    def push(self, number: int, collected: int, frame: Iterable[Bytes]) -> PushReply:
        """Append a frame."""
        self.slot.push(frame)
        return PushReply(Push.ACCEPTED)

    def collect(self, wait_ms: int) -> list[Frame]:
        """The answers since the last call."""
        new = self.slot.answers[self.lane][self.collected :]
        self.collected += len(new)
        return new


class MemorySlot:
    """A slot of `operator`, keyed; `dies_at(n)` says whether the process dies at moment n, counted over all processes.

    Each effect has two moments: an even number just before it, an odd one just after it.
    """

    def __init__(
        self,
        operator: Callable[[], Operator],
        keyed: KeyedConfig,
        schemas: tuple[pa.Schema, pa.Schema],
        sent: dict[bytes, pa.Schema],
        *,
        policy: Policy | None = None,
        types: StateTypes | None = None,
        dies_at: Callable[[int], bool] = lambda n: False,
    ) -> None:
        self.durable, self.answers = Durable(), defaultdict[str, list[Frame]](list)
        self.moments = self.deaths = 0
        self.closed: set[str] = set()  # lanes whose answers are not collected any more
        self._log: list[bytes] = []
        self._base, self._emitted = 1, 0
        self._told = b"", 0  # the node manager's last frame, and its number
        self.operator, self.types = operator, types  # those of the next process
        self._keyed, self._schemas, self._sent = keyed, schemas, sent
        self._policy, self._dies_at = policy or Policy(), dies_at
        self._engine: Engine | None = None
        self._cursor = 1

    def push(self, frame: Iterable[Bytes]) -> None:
        """Append a frame."""
        self._log.append(b"".join(map(bytes, frame)))

    def tell(self, header: Header, damaged: bytes | None = None) -> None:
        """Append a frame of the node manager; `damaged`: other bytes that are in the log in its place."""
        told = b"".join(map(bytes, encode(header)))
        self.push([told if damaged is None else damaged])
        self._told = told, self._base + len(self._log) - 1

    def lane(self, name: str) -> MemoryLane:
        """A lane of this slot."""
        return MemoryLane(self, name)

    def serve(self, read: int = 16) -> None:
        """Answer all frames in the log, `read` at a time, by as many processes as it takes."""
        while self._emitted < self._base + len(self._log) - 1 or self._engine is None:
            try:
                self._step(read)
            except Died:
                self._engine = None
                self.deaths += 1

    def die(self) -> None:
        """Let the process die between two frames."""
        self._engine = None

    def move(self, other: MemorySlot, version: int, groups: Sequence[int], *, told: int = 2) -> None:
        """Move these groups to the other slot, by that version of the map: the control frames of both, and the transfer between.

        `told`: how often ADOPT is sent; after one the adopted state becomes part of the slot's state only with the next checkpoint.
        """
        self.tell(Header(lane="move", number=version, kind=PREPARE))
        self.serve()
        self.tell(Header(lane="move", number=version, kind=HANDOVER, groups=groups))
        self.serve()
        other.durable.to_adopt[version] = self.durable.handed_over.pop(version)
        for _ in range(told):
            other.tell(Header(lane="move", number=version, kind=ADOPT))
            other.serve()

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
        loaded = Processor(self.operator(), self._schemas[1], Context("t", "1"), self.types)
        self._versions = Versions(0, (), None, None, loaded.layout)
        processor = loaded.keyed(self._keyed)
        processor.policy = self._policy
        replies, letters = Replies("t@1", "i", b"schema", DEFAULT.answer_bytes), KeyedLetters("t", DEFAULT, clock=lambda: 0.0)
        self._engine = Engine(processor, self._schemas, replies, letters, Counters())
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
            case FindTold():
                return self._told
            case LoadSession():
                return self.durable.session(effect.name, self._versions)
            case LoadAdopted():
                adopted = self.durable.to_adopt.get(effect.version, Durable())
                wanted = [s for s, record in adopted.records.items() if s in effect.loaded or record.failed]
                letters = {where: {name: len(body) for name, body in bodies.items()} for where, bodies in adopted.letters.items()}
                return Adopted({s: (adopted.records[s], adopted.session(s, self._versions).groups) for s in wanted}, letters)
            case FreeGroups():
                effect.groups.clear()
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
