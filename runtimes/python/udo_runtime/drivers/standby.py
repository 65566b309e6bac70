"""A warm standby of a keyed slot: has the owner's state, tries what the owner answers since, until it is promoted itself.

What it processes before its promotion is on trial: the owner's next checkpoint takes its place (state/standby.py). A version that
comes back from what was kept before an update does the same with that state and the input since.
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
from udo_runtime.drivers.keyed import KeyedOwner
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.perform import Performer
from udo_runtime.engine.effects import LoadSession, run
from udo_runtime.execution.failure import ProcessingError
from udo_runtime.state.missed import Missed
from udo_runtime.state.standby import Readiness, StandbyState

Report = Callable[[Mapping[str, Any]], None]
# How often a standby looks for new frames and checkpoints; a promotion wakes it at once.
_LOOK_MS = 20
_TOO_LATE = "the input since the update is no longer in the log (from frame {}): it is too late to roll back"


def unreadable(report: Report, e: ProcessingError | StateLost) -> Fenced:
    """State that this version cannot read: the owner goes on."""
    report({"ok": False, "error": {"code": e.code, "message": str(e), "traceback": getattr(e, "traceback", "")}})
    return Fenced(f"not promoted: {e}")


class Standby:
    """See the module. `report` tells the node manager that it is ready, or why it will not be."""

    def __init__(self, link: Link, owner: KeyedOwner, perform: Performer, state: StandbyState, report: Report, reference: str) -> None:
        self._link, self._owner, self._perform, self._state, self._report = link, owner, perform, state, report
        self._engine, self._durable, self._reference = owner.engine, owner.durable, reference

    def await_promotion(self) -> int:
        """Until this instance is the owner: from where to go on."""
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
            raise unreadable(self._report, e) from e
        self._trial(False)
        if follows:
            state.promoted()
            self._owner.beside = state.ending()
            if state.rewinds:  # before anything is answered: until then the newer version's state is the one
                run(self._engine.checkpoint(cursor - 1), self._perform)
                self._owner.ledger.kept, self._engine.missed = False, None
                self._await_log(cursor)
                release(self._link.conn, self._link.prefix)
        return cursor

    def _trial(self, on: bool) -> None:
        """What is processed on trial counts nowhere, and its answers are not made."""
        self._perform.counting = self._engine.counting = not on
        # Who comes back is compared with who answered, also in what it fails on.
        self._engine.processor.on_trial = on and not self._state.rewinds
        durable, state = self._durable, self._state
        state.require_types(on)
        # A standby has loaded all there are.
        self._perform.on(LoadSession, (lambda e: state.new(e.name)) if on else (lambda e: durable.load(e.name)))

    def _restart(self) -> None:
        start = self._owner.start(self._state.sessions)
        self._failed = set(start.failed_lanes)
        self._engine.restart(start)

    def _follow(self, cursor: int, started: float) -> tuple[int, bool]:
        """Keep up with the owner until promoted: from where to go on, and whether the state is the owner's."""
        link, state, first = self._link, self._state, cursor

        def tell() -> None:
            size = sum(s.size for s in self._engine.sessions.values())
            self._report({"ok": True, "load_ms": (time.perf_counter() - started) * 1000, "state_bytes": size})

        readiness = Readiness(link.conn, link.prefix, tell, early=not state.rewinds)
        while True:
            state.keep_lease()
            # Who comes back rewinds between the halves of its promotion; read before the log, so that no END is answered behind that.
            rewinds = state.rewinds and self._durable.owns()
            read = link.reader.read(cursor)
            owns = link.owns(read)
            # After the read: a promotion fences the owner here first, so that no checkpoint follows it, and none is left unread.
            covered = state.sync()
            if covered is not None:
                self._restart()
                cursor = covered + 1
                continue
            # All of it, though it was processed here: whoever takes this instance's place before its first checkpoint needs it again.
            if state.rewinds and (read.first > cursor if owns else read.base > first):
                raise StateLost(_TOO_LATE.format(first))
            if rewinds or owns:
                break
            if state.gone:
                raise Fenced(state.gone)
            if read.frames and not self._engine.commit_frame:  # else each has its checkpoint, and a second try would differ
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
        if state.gone:  # this process stood still for longer than the lease: load again, as after a crash
            self._trial(False)
            return self._owner.begin(read), False
        if failed_lanes(self._link.conn, self._link.prefix) != self._failed:  # of one that failed since, frames were tried
            state.take_back()
            covered = state.covered if state.rewinds else self._durable.covered().seq
            self._restart()
            cursor = covered + 1
        if state.rewinds:
            return self._catch_up(cursor, read.emitted), True
        return max(cursor, self._owner.take(read)), True

    def _catch_up(self, cursor: int, emitted: int) -> int:
        """All that was answered is processed. The newest checkpoint, and what rides in it, is of the version that is replaced."""
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
        """The state is this version's; until it owns the log too, what the other one answers is to be processed again."""
        while not self._link.owns(read := self._link.reader.read(cursor)):
            self._link.park_standby(cursor, _LOOK_MS)
        self._engine.emitted = read.emitted
