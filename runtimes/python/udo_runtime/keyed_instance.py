"""The loop of a keyed instance: restores the checkpoint, replays what was answered, answers, checkpoints at END.

An END is answered only when all the epoch did to its groups is durable. The checkpoint that makes it so covers the END
frame itself and carries its answer, so that an instance that dies in between neither loses nor repeats it. With commit =
"frame" that holds for every frame: nothing is ever processed twice, so that the operator need not be deterministic.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from udo_protocol import following
from udo_protocol.body import read_event
from udo_protocol.dead_letters import KeyedName, Letter
from udo_protocol.errors import Fenced, ProtocolError, Stale, StateLost, TwoProducers, UdoError
from udo_protocol.frame import ANSWER, DATA, END, RESTORE, SKIPPED, STALE, STATE, Failure, Frame, Header, decode, encode
from udo_protocol.rewinding import release
from udo_protocol.schema import GROUP_COLUMN, conform, misfits
from udo_protocol.slot import failed_lanes
from udo_protocol.slot_reader import Emit, Read
from udo_runtime import restoring
from udo_runtime.bad_events import Bad, joined
from udo_runtime.durable import Durable
from udo_runtime.failure import ProcessingError
from udo_runtime.following import Follower, Readiness, Rewinder
from udo_runtime.instance import Answer, Instance, Result
from udo_runtime.keyed import KeyedProcessor, label_of
from udo_runtime.keyed_bad_events import Again, Policy
from udo_runtime.ledger import Ledger
from udo_runtime.letters import letter as letter_of
from udo_runtime.missed import Missed
from udo_runtime.session import Session

# A part of the retained bytes: below it the log always has room for what comes while a checkpoint is being written.
_CHECKPOINT_SHARE = 4
# Behind the frame that ends later than this, what is answered leaves: a promotion throws away what waits.
_EMIT_S = 0.002
# How often a follower looks for new frames and checkpoints; a promotion wakes it at once.
_FOLLOW_MS = 2
_TOO_LATE = "the input since the update is not in the log any more (from frame {}): it is too late to go back"


class KeyedInstance(Instance):
    """An instance whose answers depend on durable state."""

    keyed: KeyedProcessor
    durable: Durable
    follower: Follower | None = None  # of an update: the state is in memory before the promotion
    _followed: Follower | None = None  # until the first checkpoint
    report: Callable[[Mapping[str, Any]], None]  # a follower tells that it is ready, or why it will not be
    ledger: Ledger
    _missed: Missed | None = None  # of a version that goes back
    _turning = False  # an epoch has ended, and no frame of another has been answered

    def policy(self, *, dead_letter: bool) -> Policy:
        """The deployment's, with this instance's ledger and counters."""
        return Policy(dead_letter, self._limits.retries, self._stats.retried, self._keep)

    def _keep(self, session: Session, header: Header, found: Sequence[Bad]) -> None:
        self.ledger.keep(session.name, header, found, self._reference, self._reader.name)
        if self.follower is None:  # what is on trial counts nowhere
            self._stats.dead_letters += len(found)

    def _shadow(self) -> int:
        if self.follower is None:
            return super()._shadow()
        started = time.perf_counter()
        if isinstance(self.follower, Rewinder):
            self.ledger.kept, self._missed = True, Missed(self._reference)
        try:
            covered = self._restart(self.follower.load(), self.follower.sessions)
            gc.collect()
            gc.freeze()
            self.keyed.on_trial = self._missed is None  # who comes back is compared with who answered, also in what it fails on
            cursor = self._follow(self.follower, covered + 1, started)
            self.keyed.on_trial = False
        except (ProcessingError, StateLost) as e:
            raise self._unreadable(e) from e
        if self.follower is not None:
            self.follower.promoted()
            self._followed, self.follower = self.follower, None
            if isinstance(self._followed, Rewinder):  # before anything is answered: until then the newer version's state is the one
                self._checkpoint(cursor - 1, [])
                self.ledger.kept, self._missed = False, None
                self._await_queue(cursor)
                release(self._conn, self._reader.prefix)
        self._stats.errors = 0
        return cursor

    def _unreadable(self, e: ProcessingError | StateLost) -> Fenced:
        """State that this version cannot read: the owner goes on."""
        self.report({"ok": False, "error": {"code": e.code, "message": str(e), "traceback": getattr(e, "traceback", "")}})
        return Fenced(f"not promoted: {e}")

    def _restart(self, covered: int, sessions: dict[str, Session]) -> int:
        """The state is that of a checkpoint, nothing has been done since."""
        self._sessions = sessions
        self._unseen: list[str] = []  # sessions that nobody has asked for, maybe of a former state version
        self._dropped: dict[str, set[int]] = {}
        self._uncovered = 0
        self._failed.clear()
        self.ledger.begin()
        self._failed.update(dict.fromkeys(failed_lanes(self._conn, self._reader.prefix)))
        self._cuts = self.durable.cuts()
        return covered

    def _follow(self, follower: Follower, cursor: int, started: float) -> int:
        """Keep up with the owner until promoted; from where to go on."""
        first, failed = cursor, set(self._failed)

        def tell() -> None:
            size = sum(s.size for s in self._sessions.values())
            self.report({"ok": True, "load_ms": (time.perf_counter() - started) * 1000, "state_bytes": size})

        readiness = Readiness(self._conn, self._reader.prefix, tell, early=self._missed is None)
        while True:
            follower.keep_lease()
            # Who comes back rewinds between the halves of its promotion; read before the log, so that no END is answered behind that.
            rewinds = isinstance(follower, Rewinder) and self.durable.owns()
            read = self._reader.read(cursor)
            if read.owner > self._reader.token:
                raise Fenced(f"token {self._reader.token} was overtaken by {read.owner} before it was promoted")
            # After the read: a promotion fences the owner here first, so that no checkpoint follows it, and none is left untold.
            covered = follower.sync()
            if covered is not None:
                cursor = self._restart(covered, follower.sessions) + 1
                failed = set(self._failed)
                continue
            # All of it, though it was processed here: whoever takes this instance's place before its first checkpoint needs it again.
            gone = read.base > first if read.owner != self._reader.token else read.first > cursor
            if gone and isinstance(follower, Rewinder):
                raise StateLost(_TOO_LATE.format(first))
            if rewinds or read.owner == self._reader.token:
                break
            if read.frames and not self.keyed.commit_frame:  # else each has its checkpoint, and a second try would differ
                for seq, data in enumerate(read.frames, read.first):
                    self._keyed_answer(seq, data)
                    self._uncovered += len(data)
                cursor = read.first + len(read.frames)
                readiness.tried(len(read.frames), read.emitted + 1 - cursor)
                continue
            if self._missed is not None:
                self._missed.check(self.durable.failed)
            readiness.all_tried()
            self._park_shadow(cursor, _FOLLOW_MS)
        if not follower.follows:  # this process stood still for longer than the lease: load again, as after a crash
            return self._begin(read)
        if failed_lanes(self._conn, self._reader.prefix) != failed:  # of one that failed since, frames were tried
            follower.take_back()
            covered = follower.covered if isinstance(follower, Rewinder) else self.durable.covered().seq
            cursor = self._restart(covered, follower.sessions) + 1
        return self._catch_up(cursor, read.emitted) if isinstance(follower, Rewinder) else max(cursor, self._take(read))

    def _await_queue(self, cursor: int) -> None:
        """The state is this version's; until it owns the log too, what the other one answers is to be processed again."""
        while (read := self._reader.read(cursor)).owner != self._reader.token:
            if read.owner > self._reader.token:
                raise Fenced(f"token {self._reader.token} was overtaken by {read.owner} before it was promoted")
            self._park_shadow(cursor, _FOLLOW_MS)
        self._emitted = read.emitted

    def _catch_up(self, cursor: int, emitted: int) -> int:
        """All that was answered is processed. The newest checkpoint, and what rides in it, is of the version that is replaced."""
        while cursor <= emitted:
            read = self._reader.read(cursor)
            if read.first > cursor or not read.frames:
                raise StateLost(_TOO_LATE.format(cursor))
            for seq, data in enumerate(read.frames[: emitted + 1 - cursor], cursor):
                self._keyed_answer(seq, data)
                cursor = seq + 1
        if self._missed is not None:
            self._missed.check(self.durable.failed)
        self._emitted = emitted
        return cursor

    def _begin(self, read: Read) -> int:
        """Promoted without having followed: the state is loaded as it is asked for."""
        self.follower = None
        self._restart(0, {})
        self._unseen = self.durable.maybe_former()
        return self._take(read)

    def _see_one(self) -> None:
        """Load one more of those that nobody asks for, so that the next checkpoints write it anew if it is of a former version."""
        if (name := self._unseen.pop()) not in self._sessions:
            session = self.durable.load(name)
            if any(group.former for group in session.groups.values()):
                self._sessions[name] = session

    def _take(self, read: Read) -> int:
        """Promoted: emit what rides in the newest checkpoint; from where to replay."""
        covers = self.durable.covered()
        self._emitted = read.emitted
        first = covers.seq - len(covers.riding) + 1
        due: list[Answer] = [(lane, [frame]) for seq, (lane, frame) in enumerate(covers.riding, first) if seq > read.emitted]
        if due:
            self._emit(read.emitted + 1, due)
            self._reader.trim(covers.seq)
        return covers.seq + 1

    def _expected_base(self, cursor: int) -> int | None:
        """The log begins where the last checkpoint ends; the reader knows."""
        return None

    def _answer_all(self, seq: int, frames: Sequence[bytes | bytearray]) -> int:
        waiting: list[Answer] = []
        since = time.perf_counter()
        for at, data in enumerate(frames, seq):
            answer, complete = self._keyed_answer(at, data)
            self._uncovered += len(data)
            if at <= self._emitted:  # replayed: its answer is out already
                continue
            if complete and not self.keyed.commit_frame:
                self._emit(at - len(waiting), waiting)
                waiting = []
                following.turning(self._conn, self._reader.prefix, following.ON_DISK_MS, None if self._turning else time.time())
                self._checkpoint(at, [(answer[0], b"".join(map(bytes, answer[1])))])
                self._emit(at, [answer])
                following.turning(self._conn, self._reader.prefix, following.NEXT_MS)
                self._turning = True
                self._reader.trim(at)
                continue
            waiting.append(answer)
            if not self.keyed.commit_frame and time.perf_counter() - since > _EMIT_S:
                self._emit_turned(at + 1 - len(waiting), waiting)
                waiting, since = [], time.perf_counter()
        end = seq + len(frames)
        if self.keyed.commit_frame and waiting:
            self._checkpoint(end - 1, [(lane, b"".join(map(bytes, answer))) for lane, answer in waiting])
            self._emit(end - len(waiting), waiting)
            self._reader.trim(end - 1)
            return end
        self._emit_turned(end - len(waiting), waiting)
        if self._uncovered > self._limits.retained_bytes // _CHECKPOINT_SHARE and self._emitted >= end - 1:
            self._checkpoint(end - 1, [])
            self._reader.trim(end - 1)
        return end

    def _emit_turned(self, first: int, answers: Sequence[Answer]) -> None:
        """Answers of an epoch under way: the end of the former one is over."""
        self._emit(first, answers)
        if answers and self._turning:
            following.turning(self._conn, self._reader.prefix, 0)
            self._turning = False

    def _emit(self, first: int, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        outcome = self._reader.emit(first, answers, trim=False)
        if outcome is not Emit.EMITTED:
            raise ProtocolError(f"instance {self._reader.name} answered out of turn: {outcome}")
        self._emitted = first + len(answers) - 1

    def _checkpoint(self, seq: int, riding: Sequence[tuple[str, bytes]]) -> None:
        if self._unseen:
            self._see_one()
        beside = [*(self._followed.ending() if self._followed else ()), *self.ledger.writes()]
        sessions = list(self._sessions.values())
        self.durable.save(sessions, self._dropped, seq, self._emitted, riding, beside=beside, own=self._reader.name)
        self._followed = None
        self.ledger.saved()
        self._dropped, self._uncovered = {}, 0

    def _keyed_answer(self, seq: int, data: bytes | bytearray) -> tuple[Answer, bool]:
        """The answer to one frame, and whether it completes a lane's epoch."""
        try:
            frame = decode(data)
        except ProtocolError:
            return self._answer(seq, data), False
        header = frame.header
        if seq <= self._cuts.get(header.session, 0):  # its attempt began with a state that was dropped or replaced since
            self._failed[header.lane] = None
        if header.lane in self._failed:
            return self._skipped(seq, header), False
        session = self._session(header.session)
        label = label_of(header)
        if (header.partition, *label) in session.failed:
            return self._skipped(seq, header), False
        try:
            if header.kind in (RESTORE, STATE):
                return self._stored(session, frame), False
            if header.kind not in (DATA, END):
                raise ProtocolError(f"expected a DATA or END frame, got kind {header.kind}")
            answer = self._end(session, header) if header.kind == END else self._events(session, frame)
            self._require_bounded(answer)
        except ProcessingError as e:
            self._fail(session, seq, header, e)
            return self._error(header, Failure(code=e.wire_code, message=str(e), traceback=e.traceback, event=e.event)), False
        except Stale:
            return (header.lane, encode(self._reply(header, STALE))), False
        except (ProtocolError, StateLost, TwoProducers) as e:
            self._fail(session, seq, header, e)
            return self._error(header, Failure(code=e.code, message=str(e))), False
        if answer is None:
            return (header.lane, encode(self._reply(header, STALE))), False
        if header.kind == END and header.job:
            self._drop(session, list(header.groups))
        if self._missed is not None and header.kind == END:
            self._missed.ended(header)
        return self._encoded(header, answer), header.kind == END

    def _skipped(self, seq: int, header: Header) -> Answer:
        if self._missed is not None:
            self._missed.skipped(seq, header)
        return header.lane, encode(self._reply(header, SKIPPED))

    def _fail(self, session: Session, seq: int, header: Header, error: UdoError) -> None:
        session.fail(label_of(header), header.partition)
        if self._missed is not None:
            self._missed.failed(seq, header, error)

    def _end(self, session: Session, header: Header) -> pa.RecordBatch | None:
        """The answer to END; None: STALE. What it means for dead letters is noted for the checkpoint that follows."""
        label = label_of(header)
        letters, settled = self.ledger.due(session, label, [] if header.void or header.job else header.groups)
        events: dict[KeyedName, pa.RecordBatch] = {}
        failed: dict[KeyedName, Letter] = {}
        for name, letter in letters.items():
            try:
                batch = read_event(letter.arrow)
                problems = misfits(batch.schema, self._input)
            except ProtocolError as e:
                problems = [str(e)]
            if problems:
                reason = "the event does not fit the operator's input schema: " + "; ".join(problems)
                failed[name] = replace(letter, reason=reason, traceback="", replays=letter.replays + 1)
            else:
                events[name] = conform(batch, self._input)
        if not events:
            answer = self.keyed.end(session, header)
        else:
            again = Again(joined(events.values(), self._input), [name.group for name in events])
            answer = self._timed(len(events), lambda: self.keyed.end(session, header, again))
            names = list(events)
            for row, bad in again.failed.items():
                old = letters[names[row]]
                new = letter_of(bad, header, self._reference, self._reader.name)
                failed[names[row]] = replace(old, code=new.code, reason=new.reason, traceback=new.traceback, replays=old.replays + 1)
        if answer is not None:
            self.ledger.end(session.name, label, header.groups, void=header.void)
            self.ledger.replayed(session.name, label.epoch, events.keys() - failed.keys(), failed, settled)
        return answer

    def _events(self, session: Session, frame: Frame) -> pa.RecordBatch | None:
        batch = self._batch(frame)
        if problems := misfits(batch.schema, self._input):
            raise ProtocolError("the frame does not fit the operator's input schema: " + "; ".join(problems))
        if GROUP_COLUMN not in batch.schema.names:
            raise ProtocolError("a keyed operator was sent events without their key groups; call it with key=")
        return self._processed(session, frame.header, batch)

    def _processed(self, session: Session, header: Header, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        events, numbers = conform(batch, self._input), batch.column(GROUP_COLUMN)
        return self._timed(batch.num_rows, lambda: self.keyed.events(session, header, events, numbers))

    def _stored(self, session: Session, frame: Frame) -> Answer:
        reply = self._reply(frame.header, ANSWER)
        reply.state_version = self.keyed.state_version
        rows = restoring.answer(session, frame, reply, self._limits.frame_bytes)
        return frame.header.lane, encode(reply, rows)

    def _session(self, name: str) -> Session:
        found = self._sessions.get(name)
        if found is None:  # a follower has loaded all there are
            found = self._sessions[name] = self.durable.load(name) if self.follower is None else self.follower.new(name)
        return found

    def _timed(self, rows: int, work: Callable[[], Result]) -> Result:
        return super()._timed(rows, work) if self.follower is None else work()  # what is on trial counts nowhere

    def _drop(self, session: Session, numbers: list[int]) -> None:
        """A batch job's groups end with its lane."""
        for n in numbers:
            session.groups.pop(n, None)
        self._dropped.setdefault(session.name, set()).update(numbers)
        if not any(n >= 0 for n in session.groups):
            self._dropped[session.name].update(session.groups)
            del self._sessions[session.name]
