"""The keyed state machine: the attempt that a frame belongs to, its changes to the state, and what must be durable before its answer.

An END is answered only when all changes of the epoch to its groups are durable. The checkpoint that does this covers the END
frame itself and carries its answer, so that an instance that dies in between neither loses nor repeats it. With commit =
"frame" that holds for every frame: nothing is ever processed twice, so the operator need not be deterministic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import ProtocolError, Stale, StateLost, TwoProducers, UdoError
from udo_protocol.formats.body import read_event
from udo_protocol.formats.schema import GROUP_COLUMN, conform, misfits
from udo_protocol.queue.frame import ADOPT, ANSWER, DATA, END, HANDOVER, PREPARE, RESTORE, STATE, Frame, Header, decode, encode
from udo_protocol.state.dead_letters import KeyedName, Letter
from udo_runtime.counters import Counters
from udo_runtime.engine.content import FOLD, FOLD_BEFORE_CUT, CheckpointContent, changed, stored
from udo_runtime.engine.effects import (
    Answer,
    Execute,
    FindSchema,
    FindSender,
    HandOver,
    LaneOpen,
    LoadSession,
    Send,
    Steps,
    TakeIn,
    Trim,
    WriteCheckpoint,
)
from udo_runtime.engine.group_moves import GroupMoves
from udo_runtime.engine.letter import letter as letter_of
from udo_runtime.engine.letters import KeyedLetters, Sizes
from udo_runtime.engine.replies import FailedLanes, Replies, failure
from udo_runtime.execution.bad_events import BadEvent
from udo_runtime.execution.gathered import empty, joined
from udo_runtime.execution.keyed_bad_events import ResentLetters
from udo_runtime.execution.keyed_processor import KeyedProcessor, Processed
from udo_runtime.failure import ProcessingError
from udo_runtime.state import restoring
from udo_runtime.state.label import label_of
from udo_runtime.state.missed import Missed
from udo_runtime.state.session import Session

# A checkpoint is due after 1/_CHECKPOINT_SHARE of the retained bytes: the log has room for frames that come while it is being written.
_CHECKPOINT_SHARE = 4


@dataclass(frozen=True)
class Start:
    """The content of durable state when an engine starts from it, or restarts."""

    sessions: dict[str, Session] = field(default_factory=dict)
    failed_lanes: Iterable[str] = ()  # lanes that were answered with an error on behalf of the operator
    cuts: Mapping[str, int] = field(default_factory=dict)  # session -> last frame of the log that belongs to the former state
    letters: Sizes = field(default_factory=dict)
    unseen: Sequence[str] = ()  # sessions not loaded, maybe in the form of a former state version


class Engine:
    """One slot's keyed state, within the limits of its letters. `frame` processes one frame; `serve` and `flush` also answer, as the
    owner.

    `groups`: process only the events of these key groups (a mirror of some groups); None: of all. `token`: the owner's.
    """

    def __init__(
        self,
        processor: KeyedProcessor,
        schemas: tuple[pa.Schema, pa.Schema],
        replies: Replies,
        letters: KeyedLetters,
        counters: Counters,
        groups: Collection[int] | None = None,
        token: int = 0,
    ) -> None:
        self.processor, self.letters, self.counters, self.groups = processor, letters, counters, groups
        self._input, self._output = schemas
        self._replies, self._limits = replies, letters.limits
        self.emitted = 0  # the last answered frame, by this or an earlier owner
        self.missed: Missed | None = None  # set during a rollback
        self.counting = True  # off while frames are processed on trial, or were counted before
        self._names = (f"{token}.{n}" for n in count())  # names of new pieces
        self.waiting: list[Answer] = []  # answers not yet sent, to the frames up to the last one served
        self._moving: Header | None = None  # header of the frame under way, if it moves key groups
        self.restart(Start())

    @property
    def commit_frame(self) -> bool:
        """Whether each frame's answer waits until it is durable."""
        return self.processor.commit_frame

    @property
    def adopting(self) -> bool:
        """Whether the frame processed last adopts key groups of another slot."""
        return self._moving is not None and self._moving.kind == ADOPT

    def restart(self, start: Start) -> None:
        """Start again from the state of a checkpoint; later changes are forgotten."""
        self.sessions, self._cuts = start.sessions, start.cuts
        self._unseen = list(start.unseen)
        self._failed = FailedLanes(start.failed_lanes)
        self._dropped: dict[str, set[int]] = {}
        self._uncovered = 0  # bytes of frames since the last checkpoint
        self._soon = False
        self.letters.restart(start.letters)
        self._moves = GroupMoves(self)

    # -- the owner ---------------------------------------------------------------------------------------------------

    def serve(self, seq: int, data: bytes | bytearray) -> Steps[None]:
        """Process frame `seq`; its answer is sent with the next flush, that of an END after its checkpoint."""
        answer, ended = yield from self.frame(seq, data, due=seq > self.emitted)
        if self._moving is not None:
            yield from self._moves.step(seq, data, self._moving, answer)
            return
        if seq <= self.emitted:  # replayed: its answer has been sent already
            return
        if not ended or self.commit_frame:
            self.waiting.append(answer)
            return
        yield from self.emit()
        yield from self.checkpoint(seq, [answer], ends=True)
        self.waiting.append(answer)
        yield from self.emit(ends=True)
        yield Trim(seq)

    def checkpoint_soon(self) -> None:
        """Let the next flush make a checkpoint, so that one that events wait for will have little to write."""
        self._uncovered, self._soon = self._limits.retained_bytes, True

    def flush(self, seq: int) -> Steps[None]:
        """Send the answers to all processed frames, which are those up to `seq`."""
        if self.commit_frame and self.waiting:
            yield from self.checkpoint(seq, self.waiting)
            yield from self.emit()
            yield Trim(seq)
            return
        yield from self.emit()
        if self._uncovered > self._limits.retained_bytes // _CHECKPOINT_SHARE and self.emitted >= seq:
            yield from self.checkpoint(seq)
            yield Trim(seq)

    def send(self) -> Steps[None]:
        """Send the answers that may be sent before a flush."""
        if not self.commit_frame:
            yield from self.emit()

    def take(self, seq: int, riding: Sequence[tuple[str, bytes | bytearray]], emitted: int) -> Steps[int]:
        """Become the owner: send the unanswered riding answers of the newest checkpoint, which covers `seq`; returns where to continue."""
        self.emitted = emitted
        first = seq - len(riding) + 1
        due: list[Answer] = [(lane, [frame]) for at, (lane, frame) in enumerate(riding, first) if at > emitted]
        if due:
            self.waiting = due
            yield from self.emit()
            yield Trim(seq)
        return seq + 1

    def emit(self, *, ends: bool = False) -> Steps[None]:
        """Send the waiting answers."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            yield Send(self.emitted + 1, waiting, ends)
            self.emitted += len(waiting)

    def checkpoint(
        self, seq: int, riding: Sequence[Answer] = (), *, ends: bool = False, moving: HandOver | TakeIn | None = None
    ) -> Steps[None]:
        """Make all changes up to `seq` durable."""
        moving = moving or self._moves.taking
        if self._unseen and moving is None:  # a session loaded now would lack the moving groups in memory
            yield from self._see_one()
        sessions = list(self.sessions.values())
        # While key groups move their events wait; and a slot that has read a group ahead would have to read its new base.
        fold = None if moving is not None else FOLD_BEFORE_CUT if self._soon else FOLD
        pieces, records = changed(sessions, self._names, fold=fold, close=self._soon)
        content = CheckpointContent(pieces, records, self._dropped, self.letters.changes())
        frames = [(lane, b"".join(map(bytes, answer))) for lane, answer in riding]
        yield WriteCheckpoint(seq, self.emitted, content, frames, ends, moving)
        self._moves.taking = None
        stored(sessions, pieces)
        self.letters.saved()
        self._dropped, self._uncovered, self._soon = {}, 0, False

    def _see_one(self) -> Steps[None]:
        """Load one more session that no frame asked for; the next checkpoints rewrite it if it is of a former version."""
        if (name := self._unseen.pop()) not in self.sessions:
            session = yield LoadSession(name)
            if any(group.former for group in session.groups.values()):
                self.sessions[name] = session

    # -- a frame -----------------------------------------------------------------------------------------------------

    def frame(self, seq: int, data: bytes | bytearray, *, due: bool = False) -> Steps[tuple[Answer, bool]]:
        """The answer to one frame, whatever it contains, and whether it completes a lane's epoch.

        `due`: the frame is to be answered now; an attempt whose lane is closed then fails. A frame that was answered before is processed
        again even if its lane has been closed since.
        """
        self._uncovered += len(data)
        self._moving = None
        try:
            frame = decode(data)
        except ProtocolError as e:
            lane, number = yield FindSender(seq)
            return self.error(Header(lane=lane, number=number), e), False
        header = frame.header
        if header.kind in (PREPARE, HANDOVER, ADOPT):
            self._moving = header
            return self._replies.nothing(header), False
        if seq <= self._cuts.get(header.session, 0):  # its attempt began with a state that has been dropped or replaced since
            self._failed.add(header.lane)
        if header.lane in self._failed:
            return self._skipped(seq, header), False
        session: Session | None = self.sessions.get(header.session)
        if session is None or header.job:  # its durable state is loaded, or dropped
            yield from self._moves.taken_in(seq)
        if session is None:
            session = self.sessions[header.session] = yield LoadSession(header.session)
        assert session is not None
        if (header.partition, *label_of(header)) in session.failed:
            return self._skipped(seq, header), False
        if due and not (yield LaneOpen(header.lane)):  # its task was cancelled or died: the attempt cannot complete
            session.fail(label_of(header), header.partition)
            return self._skipped(seq, header), False
        try:
            answer = yield from self._answer(session, frame)
        except Stale:
            answer = None
        except (ProcessingError, ProtocolError, StateLost, TwoProducers) as e:
            session.fail(label_of(header), header.partition)
            if self.missed is not None:
                self.missed.failed(seq, header, e)
            return self.error(header, e), False
        if answer is None:
            return self._replies.stale(header), False
        if header.kind == END and header.job:
            self._drop(session, list(header.groups))
        if self.missed is not None and header.kind == END:
            self.missed.ended(header)
        return answer, header.kind == END

    def _answer(self, session: Session, frame: Frame) -> Steps[Answer | None]:
        """The answer; None if the frame is STALE."""
        header = frame.header
        session.require_groups(self._limits.key_groups)
        if header.kind in (RESTORE, STATE):
            reply = self._replies.header(header, ANSWER)
            reply.state_version = self.processor.state_version
            rows = restoring.answer(session, frame, reply, self._limits.frame_bytes)
            return header.lane, encode(reply, rows)
        if header.kind == END:
            done = yield from self._end(session, header)
        elif header.kind == DATA:
            done = yield from self._events(session, frame)
        else:
            raise ProtocolError(f"expected a DATA or END frame, got kind {header.kind}")
        if done is None:
            return None
        return self._replies.events(header, done.answer, done.highest)

    def _events(self, session: Session, frame: Frame) -> Steps[Processed | None]:
        header = frame.header
        # Invalid UTF-8 is one event's fault: events are decoded one by one.
        batch = frame.batch((yield FindSchema(header.schema)), text=False)
        if problems := misfits(batch.schema, self._input):
            raise ProtocolError("the frame does not fit the operator's input schema: " + "; ".join(problems))
        _require_key_groups(batch, self._limits.key_groups)
        if self.groups is not None:
            batch = in_groups(batch, batch, self.groups)
            if not batch.num_rows:
                return Processed(empty(self._output), ())
        events, numbers = conform(batch, self._input), batch.column(GROUP_COLUMN)
        done: Processed | None = yield Execute(batch.num_rows, lambda: self.processor.events(session, header, events, numbers))
        if done is not None:
            if self.counting:
                self.counters.in_groups(numbers)
            yield from self._keep(header, done.bad)
        return done

    def _end(self, session: Session, header: Header) -> Steps[Processed | None]:
        """Process an END; its consequences for dead letters are noted for the following checkpoint."""
        if self.groups is not None:
            header, whole = Header(), header
            header.CopyFrom(whole)
            header.groups[:] = [n for n in whole.groups if n in self.groups]
        label = label_of(header)
        letters, settled = yield from self.letters.due(session, label, [] if header.void or header.job else header.groups)
        events, failed = self._sent_again(letters)
        again = ResentLetters(joined(events.values(), self._input), [name.group for name in events]) if events else None
        done: Processed | None = yield Execute(len(events) or None, lambda: self.processor.end(session, header, again))
        if done is None:
            return None
        yield from self._keep(header, done.bad)
        self.processor.complete(session, header)
        names = list(events)
        for row, wrong in (again.failed if again else {}).items():
            old, new = letters[names[row]], self._letter(wrong, header)
            failed[names[row]] = replace(old, code=new.code, reason=new.reason, traceback=new.traceback, replays=old.replays + 1)
        self.letters.end(session.name, label, header.groups, void=header.void)
        self.letters.replayed(session.name, label.epoch, events.keys() - failed.keys(), failed, settled)
        return done

    def _sent_again(self, letters: Mapping[KeyedName, Letter]) -> tuple[dict[KeyedName, pa.RecordBatch], dict[KeyedName, Letter]]:
        """The events of dead letters that are sent again, and the letters whose events no longer fit the operator."""
        events: dict[KeyedName, pa.RecordBatch] = {}
        failed: dict[KeyedName, Letter] = {}
        for name, letter in letters.items():
            try:
                batch = read_event(letter.arrow)
                if not (problems := misfits(batch.schema, self._input)):
                    events[name] = conform(batch, self._input)
            except ProtocolError as e:
                problems = [str(e)]
            if problems:
                reason = "the event does not fit the operator's input schema: " + "; ".join(problems)
                failed[name] = replace(letter, reason=reason, traceback="", replays=letter.replays + 1)
        return events, failed

    def _keep(self, header: Header, found: Sequence[BadEvent]) -> Steps[None]:
        """Make dead letters of a frame's bad events; ProcessingError if there is no room."""
        if not found:
            return
        label = label_of(header)
        letters = {
            KeyedName(header.session, label.epoch, bad.group, label.run, label.attempt, header.number, bad.row): self._letter(
                bad, header
            ).encode()
            for bad in found
        }
        yield from self.letters.keep(letters, found[0].error)
        if self.counting:
            self.counters.dead_letters += len(found)

    def _letter(self, bad: BadEvent, header: Header) -> Letter:
        return letter_of(bad, header, self._replies.reference, self._replies.instance, self.letters.clock())

    def error(self, header: Header, e: UdoError) -> Answer:
        """Fail a frame's lane, so that its later frames are skipped; returns the answer to the frame."""
        self._failed.add(header.lane)
        self.counters.errors += self.counting
        return self._replies.error(header, failure(e))

    def _skipped(self, seq: int, header: Header) -> Answer:
        if self.missed is not None:
            self.missed.skipped(seq, header)
        return self._replies.skipped(header)

    def _drop(self, session: Session, numbers: list[int]) -> None:
        """Remove a batch job's groups at the END of their lane; the session ends with its last group."""
        for n in numbers:
            session.groups.pop(n, None)
        self._dropped.setdefault(session.name, set()).update(numbers)
        if any(n >= 0 for n in session.groups):
            session.changed = True  # other partitions are still running: its record must stay
        else:
            self._dropped[session.name].update(session.groups)
            del self.sessions[session.name]


def _require_key_groups(batch: pa.RecordBatch, key_groups: int) -> None:
    """ProtocolError unless every event has the number of its key group, 0 to `key_groups` - 1."""
    if GROUP_COLUMN not in batch.schema.names:
        raise ProtocolError("a keyed operator was sent events without their key groups; call it with key=")
    numbers = batch.column(GROUP_COLUMN)
    if numbers.type != pa.int32() or numbers.null_count:
        raise ProtocolError(f"expected int32 key groups without nulls, got {numbers.type} with {numbers.null_count} nulls")
    least, most = pc.min_max(numbers).values()
    if batch.num_rows and not 0 <= least.as_py() <= most.as_py() < key_groups:
        raise ProtocolError(f"expected key groups 0 to {key_groups - 1}, got {least} to {most}")


def in_groups(rows: pa.RecordBatch, events: pa.RecordBatch, groups: Collection[int]) -> pa.RecordBatch:
    """The `rows` (one for each of `events`) whose event is in these key groups."""
    numbers = events.column(GROUP_COLUMN)
    return rows.filter(pc.is_in(numbers, value_set=pa.array(groups, numbers.type)))
