"""The canary of a keyed deployment on this node: a comparison of some key groups in each of its slots, which answers no query.

One token owns a slot's log, so no other version can serve a part of its keys. A slot's comparison that breaks is begun anew: its counts are
kept, and a death counts as one more error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Event, Lock, Thread

import structlog

from node_manager.slots.deaths import RESTART_FIRST_S, RESTART_MOST_S, SETTLED_S
from node_manager.slots.loading import Wanted
from node_manager.slots.slot import Slot
from node_manager.trials.mirrors import Mirrors
from udo_protocol import supervised
from udo_protocol.diff_report import DiffReport
from udo_protocol.errors import Conflict, OperatorError, SchemaError, UdoError, Unavailable
from udo_protocol.registry.canary import Measured, share_of_groups

_log = structlog.get_logger()
# After this many failed attempts in a row to begin, the failure looks permanent: with a version that does not load, and while a server is
# away (more than twenty seconds).
_LOAD_TRIES, _TRIES = 3, 8


class SlotCanary:
    """A keyed canary in one slot. Methods may be called from any thread; `start` once."""

    def __init__(self, mirrors: Mirrors, slot: Slot, wanted: Wanted, groups: Sequence[int]) -> None:
        self.slot = slot
        # The error because of which it cannot go on.
        self.failure: UdoError | None = None
        # The first error of the new version, for people.
        self.first_error = ""
        # Whether it has begun.
        self.running = False
        self._mirrors, self._wanted, self._groups = mirrors, wanted, groups
        self._decided, self._over, self._stop = Event(), Event(), Event()
        self._known = (Measured(), DiffReport())  # counts of comparisons that are over; the present one's report
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start, without waiting for anything."""
        self._thread = supervised.keep("canary", self._run, self._over, self.slot.deployment)

    def wait_begun(self, deadline: float) -> None:
        """Return once frames are compared, or raise the error if they cannot be; Conflict after `deadline`, or if it was ended before."""
        self._decided.wait(max(deadline - time.monotonic(), 0))
        if self.failure is not None:
            raise self.failure
        if not self.running:
            why = "was ended before it started" if self._over.is_set() else f"did not start within {self._wanted.ready_timeout_s:g} s"
            raise Conflict(f"the canary of {self._wanted.reference} {why}")

    def stop(self) -> None:
        """Let it stop, without waiting for that."""
        self._over.set()
        self._stop.set()

    def wait_stopped(self) -> None:
        """Return when nothing of it is left, after `stop`."""
        if self._thread is not None:
            self._thread.join(self.slot.node.settings.stop_grace_s + 15)

    def measured(self) -> Measured:
        """Its counts since it began."""
        before, report = self._known
        return Measured(
            events=before.events + report.events,
            frames=before.frames + report.answered,
            errors=before.errors + report.errors_new,
            compared=before.compared + report.frames,
            different=before.different + report.different,
            p50_ms=report.p50_ms or before.p50_ms,
            p99_ms=report.p99_ms or before.p99_ms,
        )

    def _run(self) -> None:
        self._until_over()
        self._decided.set()

    def _until_over(self) -> None:
        failed, pause_s = 0, 0.0
        while not self._over.wait(pause_s):
            self._stop = Event()
            if self._over.is_set():
                return
            started, began = time.monotonic(), False
            try:
                for found in self._mirrors.run(self.slot, self._wanted, float("inf"), 0, self._stop, self._groups):
                    began, failed = True, 0
                    self._take(found.report)
            except Exception as e:
                _log.warning("canary interrupted", deployment=self.slot.deployment, error=str(e), exc_info=not isinstance(e, UdoError))
                failed += not began
                its_own = isinstance(e, (OperatorError, SchemaError))
                if failed >= (_LOAD_TRIES if its_own else _TRIES) or (its_own and not self.running):
                    self.failure = e if isinstance(e, UdoError) else Unavailable(f"{type(e).__name__}: {e}")
                    return
            finally:
                self._known = (self.measured(), DiffReport())
            settled = time.monotonic() - started > SETTLED_S
            pause_s = RESTART_FIRST_S if settled else min(max(2 * pause_s, RESTART_FIRST_S), RESTART_MOST_S)

    def _take(self, report: DiffReport) -> None:
        before, _ = self._known
        if report.first_error is not None:
            self.first_error = self.first_error or report.first_error.message
        if report.died:
            self.first_error = self.first_error or report.died.splitlines()[0]
            before = before.model_copy(update={"errors": before.errors + 1})
        self._known = (before, report)
        self.running = True
        self._decided.set()


class KeyedCanary:
    """The canary of one keyed deployment, in all of its slots on this node. Methods may be called from any thread."""

    def __init__(self, mirrors: Mirrors, wanted: Wanted, update_id: str, percent: float) -> None:
        self.update_id, self.percent = update_id, percent
        self.version, self.digest = wanted.image.manifest.version, wanted.image.digest
        self.confirmed_at = time.monotonic()
        self._mirrors, self._wanted, self._groups = mirrors, wanted, share_of_groups(percent, wanted.config.key_groups)
        self._slots: dict[int, SlotCanary] = {}
        self._over = False
        self._lock = Lock()

    def start(self, slots: Iterable[Slot]) -> None:
        """Start in those of these slots where it has not started; return once frames of all are compared, or raise the error if they
        cannot be. Slots that come later are those of a lost node."""
        with self._lock:
            if self._over:
                raise Conflict(f"the canary of {self._wanted.reference} was ended before it started")
            for slot in slots:
                if slot.number not in self._slots:
                    begun = self._slots[slot.number] = SlotCanary(self._mirrors, slot, self._wanted, self._groups)
                    begun.start()
        deadline = time.monotonic() + self._wanted.ready_timeout_s
        for each in self._all():
            each.wait_begun(deadline)

    def end(self) -> None:
        """Stop it, and wait until nothing of it is left."""
        with self._lock:
            self._over = True
        for each in self._all():
            each.stop()
        for each in self._all():
            each.wait_stopped()

    def _all(self) -> list[SlotCanary]:
        with self._lock:
            return list(self._slots.values())

    @property
    def running(self) -> bool:
        """Whether it has begun in all slots."""
        return bool(every := self._all()) and all(each.running for each in every)

    @property
    def failure(self) -> UdoError | None:
        """The error because of which it cannot go on."""
        return next((each.failure for each in self._all() if each.failure is not None), None)

    @property
    def first_error(self) -> str:
        """The first error of the new version, for people."""
        return next((each.first_error for each in self._all() if each.first_error), "")

    def describe(self, number: int) -> str:
        """Its task and its counts in that slot, in a few words; '' if it is not tried there."""
        if (here := self._slots.get(number)) is None:
            return ""
        tried = f"{len(self._groups)} of {self._wanted.config.key_groups} key groups tested by {self.version}, which answers no query"
        return f"{tried}: {here.measured()}"

    def measured(self) -> Measured:
        """Its counts since it began, of all slots."""
        return Measured.together(each.measured() for each in self._all())
