"""A warm standby of a keyed slot: loads the owner's state and processes the frames that the owner answers, until it is promoted.

Frames processed before the promotion are on trial: the owner's next checkpoint replaces their effects (durable/standby.py). A version that
is rolled back to does the same with the state kept before the update and the input since then.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

from udo_protocol.errors import Fenced, StateLost
from udo_protocol.queue.slot import failed_lanes
from udo_protocol.queue.slot_reader import Read
from udo_protocol.state.rewinding import release
from udo_runtime.drivers.keyed_owner import KeyedOwner
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.perform import Performer
from udo_runtime.durable.standby import Readiness, StandbyState
from udo_runtime.engine.effects import LoadSession, run
from udo_runtime.failure import ProcessingError
from udo_runtime.state.missed import Missed

Report = Callable[[Mapping[str, Any]], None]
# How often a standby looks for new frames and checkpoints; a promotion wakes it at once.
_LOOK_MS = 20
_TOO_LATE = "the input since the update is no longer in the log (from frame {}): it is too late to roll back"


def not_ready(report: Report, e: ProcessingError | StateLost | Fenced) -> Fenced:
    """Report why this instance will not be ready, so that the owner continues; returns the error to exit with."""
    report({"ok": False, "error": {"code": e.code, "message": str(e), "traceback": getattr(e, "traceback", "")}})
    return e if isinstance(e, Fenced) else Fenced(f"not promoted: {e}")


class Standby:
    """The driver of a standby. `report` tells the node manager that it is ready, or why it will not be."""

    def __init__(self, link: Link, owner: KeyedOwner, perform: Performer, state: StandbyState, report: Report, reference: str) -> None:
        self._link, self._owner, self._perform, self._state, self._report = link, owner, perform, state, report
        self._engine, self._durable, self._reference = owner.engine, owner.durable, reference
        self._ready = False

    def await_promotion(self) -> int:
        """Follow the owner until this instance is promoted; returns the frame to continue from."""
        started, state = time.perf_counter(), self._state
        self._trial(True)
        if state.rewinds:
            self._owner.ledger.kept, self._engine.missed = True, Missed(self._reference)
        try:
            covered = state.load()
            self._restart()
            gc.collect()
            gc.freeze()
            cursor, follows = self._follow(covered + 1, started)
        except (ProcessingError, StateLost) as e:
            raise not_ready(self._report, e) from e
        except Fenced as e:
            raise (e if self._ready else not_ready(self._report, e)) from None
        self._trial(False)
        if follows:
            state.promoted()
            self._owner.beside = state.ending()
            if state.rewinds:  # before anything is answered: until this checkpoint the newer version's state is the valid one
                run(self._engine.checkpoint(cursor - 1), self._perform)
                self._owner.ledger.kept, self._engine.missed = False, None
                self._await_log(cursor)
                release(self._link.conn, self._link.keys)
        return cursor

    def _trial(self, on: bool) -> None:
        """Switch the trial on or off: frames on trial are not counted, and no answers are made for them."""
        self._perform.counting = self._engine.counting = not on
        # In a rollback this version is compared with the one that answered, including its failures.
        self._engine.processor.on_trial = on and not self._state.rewinds
        durable, state = self._durable, self._state
        state.require_types(on)
        # A standby has loaded all existing sessions.
        self._perform.on(LoadSession, (lambda e: state.new(e.name)) if on else (lambda e: durable.load(e.name)))

    def _restart(self) -> None:
        start = self._owner.start(self._state.sessions)
        self._failed = set(start.failed_lanes)
        self._engine.restart(start)

    def _follow(self, cursor: int, started: float) -> tuple[int, bool]:
        """Follow the owner until promoted; returns the frame to continue from, and whether the state is the owner's."""
        link, state, first = self._link, self._state, cursor

        def tell() -> None:
            size = sum(s.size for s in self._engine.sessions.values())
            self._ready = True
            self._report({"ok": True, "load_ms": (time.perf_counter() - started) * 1000, "state_bytes": size})

        readiness = Readiness(link.conn, link.keys, tell, early=not state.rewinds)
        while True:
            state.keep_lease()
            # In a rollback the rewind happens between the halves of the promotion; checked before the log is read, so that no END is
            # answered after it.
            rewinds = state.rewinds and self._durable.owns()
            read = link.reader.read(cursor)
            owns = link.owns(read)
            # After the read: a promotion fences the owner on the state server first, so no checkpoint follows, and none is left unread.
            covered = state.sync()
            if covered is not None:
                self._restart()
                cursor = covered + 1
                continue
            # All of the input must be there, although it was processed: an instance that replaces this one before its first checkpoint
            # needs it.
            if state.rewinds and (read.first > cursor if owns else read.base > first):
                raise StateLost(_TOO_LATE.format(first))
            if rewinds or owns:
                break
            if state.gone:
                raise Fenced(state.gone)
            if read.frames and not self._engine.commit_frame:  # else each frame has a checkpoint, and processing it again would differ
                for seq, data in enumerate(read.frames, read.first):
                    run(self._engine.frame(seq, data), self._perform)
                cursor = read.first + len(read.frames)
                readiness.tried(len(read.frames), read.emitted + 1 - cursor)
                continue
            self._check_missed()
            readiness.all_tried()
            link.park_standby(cursor, _LOOK_MS)
        return self._promoted(cursor, read)

    def _promoted(self, cursor: int, read: Read) -> tuple[int, bool]:
        state = self._state
        if state.gone:  # this process was paused for longer than the lease: load again, as after a crash
            self._trial(False)
            return self._owner.begin(read), False
        if failed_lanes(self._link.conn, self._link.keys) != self._failed:  # frames of a lane that has failed since were processed on trial
            state.take_back()
            covered = state.covered if state.rewinds else self._durable.covered().seq
            self._restart()
            cursor = covered + 1
        if state.rewinds:
            return self._catch_up(cursor, read.emitted), True
        return max(cursor, self._owner.take(read)), True

    def _catch_up(self, cursor: int, emitted: int) -> int:
        """Process all answered frames. The newest checkpoint and its riding answers are those of the version that is replaced."""
        while cursor <= emitted:
            read = self._link.reader.read(cursor)
            if read.first > cursor or not read.frames:
                raise StateLost(_TOO_LATE.format(cursor))
            for seq, data in enumerate(read.frames[: emitted + 1 - cursor], cursor):
                run(self._engine.frame(seq, data), self._perform)
                cursor = seq + 1
        self._check_missed()
        self._engine.emitted = emitted
        return cursor

    def _check_missed(self) -> None:
        if self._engine.missed is not None:
            self._engine.missed.check(self._durable.failed)

    def _await_log(self, cursor: int) -> None:
        """Wait, after this version has taken the state, until it owns the log too; frames that the other version answers until then are
        processed again."""
        while not self._link.owns(read := self._link.reader.read(cursor)):
            self._link.park_standby(cursor, _LOOK_MS)
        self._engine.emitted = read.emitted
