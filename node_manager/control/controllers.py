"""The controllers of one node, one per deployment: at an interval each takes a sample, decides, and writes the decision down; in mode auto
it is carried out.

They see and change deployments through a `Plant`, so that tests drive this loop over a simulated one on a simulated clock. While a step is
carried out nothing is decided about its deployment: the figures would fit neither number of slots.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

import structlog

from elasticity.scaling import managed
from elasticity.scaling.application_wish import Membership
from elasticity.scaling.journal import Execution, Header, JournalEntry, Woken
from elasticity.scaling.model import Plan, Sample
from elasticity.scaling.modes import ADVISE, AUTO, OFF, Elasticity
from node_manager.control.journals import DeploymentJournal, prune
from udo_protocol.errors import Conflict, UdoError

# Folders of journals are pruned this often.
_PRUNE_S = 3600.0
_log = structlog.get_logger()


@dataclass(frozen=True)
class Controlled:
    """A deployment as a controller finds it. obstacle: why it is never changed here, '' if it may be. paused: nothing is decided for now,
    since something else changes it. membership: the application that it belongs to, whose manager is asked."""

    name: str
    wish: Elasticity
    obstacle: str = ""
    paused: bool = False
    membership: Membership | None = None
    spread: int = 0  # as ManagedSettings: over nodes, where the registry carries out granted steps

    @property
    def mode(self) -> str:
        """The mode in force here: with an obstacle, auto is advise."""
        return ADVISE if self.wish.mode == AUTO and self.obstacle else self.wish.mode


class Plant(Protocol):
    """The deployments under control, as the controllers see and change them."""

    node: str
    cores: int

    def deployments(self) -> list[Controlled]:
        """The deployments of this node."""

    def sample(self, name: str, at_s: float, most: int) -> Sample:
        """Measure a deployment, for at most `most` replicas. NotFound if it has gone."""

    def scale(self, name: str, slots: int) -> None:
        """Give it `slots` slots; return when it has them."""

    def move(self, name: str, groups: Sequence[tuple[int, str]]) -> None:
        """Move each of these key groups to its replica; return when they are there."""

    def prepare(self, name: str, slots: int) -> None:
        """Prepare a scale-out to `slots` slots, or change the prepared one to that; return when it is ready."""

    def stand_down(self, name: str) -> None:
        """Give up the prepared scale-out."""

    def wakes(self, name: str) -> list[Woken]:
        """Return the ends of sleeps that were not reported yet."""

    def beside(self, work: Callable[[], None], about: str) -> None:
        """Run `work` without holding up the caller."""


@dataclass
class _Controller:
    journal: DeploymentJournal
    due_s: float = 0.0
    decided_s: float = 0.0  # when the latest decision was made (monotonic)
    busy: bool = False
    latest: JournalEntry | None = None


class Controllers:
    """See the module. `tick` is called by one thread, the others by any."""

    def __init__(self, plant: Plant, journals: Path, wall: Callable[[], float], every_s: float) -> None:
        self._plant, self._folder, self._wall, self.every_s = plant, journals, wall, every_s
        self._controllers: dict[str, _Controller] = {}
        self._prune_at_s = 0.0
        self._lock = Lock()  # guards decisions and the beginning of steps
        self._later: dict[str, float] = {}  # deployment -> time of the next try, after its journal could not be written

    def tick(self, now_s: float) -> None:
        """Decide about each deployment whose interval is over. now_s: monotonic."""
        deployed = self._plant.deployments()
        there = {d.name: d for d in deployed if d.mode != OFF}
        self._controllers = {name: c for name, c in self._controllers.items() if name in there}
        self._later = {name: at_s for name, at_s in self._later.items() if name in there}
        for d in there.values():
            if now_s < self._later.get(d.name, 0.0):
                continue
            try:
                with self._lock:
                    self._tick(d, now_s)
            except OSError as e:
                self._later[d.name] = now_s + self.every_s
                _log.warning("nothing is decided, since it cannot be written down", deployment=d.name, error=str(e))
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + _PRUNE_S
            prune(self._folder, {d.name for d in deployed})

    def _tick(self, d: Controlled, now_s: float) -> None:
        controller, header = self._controllers.get(d.name), self._header(d)
        if d.paused or controller is not None and controller.busy:
            return
        if controller is None or controller.journal.header != header:
            controller = self._controllers[d.name] = _Controller(DeploymentJournal(self._folder / d.name, header))
        for wake in self._plant.wakes(d.name):
            controller.journal.woken(wake)
        if now_s < controller.due_s:
            return
        controller.due_s = now_s + self.every_s
        at_s, last_at_s = self._wall(), controller.journal.last_at_s
        if at_s <= last_at_s:  # the clock was set back
            at_s = last_at_s + (now_s - controller.decided_s if controller.latest else 0.0)
        at_s = round(at_s, 3)
        try:
            seen = self._plant.sample(d.name, at_s, header.settings["most"])
        except UdoError:  # it has just gone
            return
        entry = controller.latest = controller.journal.decide(seen)
        controller.decided_s = now_s
        for step in entry.decision.granted:
            self._take(d, controller, entry, step)

    def _header(self, d: Controlled) -> Header:
        """The settings and the seed that determine the decisions."""
        about = {"deployment": d.name, "node": self._plant.node, "mode": d.mode, "every_s": self.every_s}
        if d.wish.mode != d.mode:
            about["not_auto"] = d.obstacle
        if d.membership is not None:
            about["application"] = d.membership.name
            settings = d.membership.header(d.wish, self._plant.cores) | ({"spread": d.spread} if d.spread else {})
            return Header("managed", settings, zlib.crc32(d.name.encode()), about)
        return Header("local", d.wish.header(self._plant.cores), zlib.crc32(d.name.encode()), about)

    def _take(self, d: Controlled, controller: _Controller, entry: JournalEntry, step: Plan) -> None:
        _log.info("step decided", deployment=d.name, kind=step.kind, slots=step.replicas, mode=d.mode, why=step.why)
        if d.mode != AUTO:
            return
        self._begin(d.name, controller, entry.number, len(entry.sample.operators[0].replicas), step)

    def asked(self, name: str) -> tuple[int, int, tuple[Plan, ...]]:
        """The proposal of the deployment's Operator Manager: its decision's number (-1: none), the replicas it saw, and the steps."""
        controller = self._controllers.get(name)
        entry = controller.latest if controller is not None and not controller.busy else None
        if entry is None:
            return -1, 0, ()
        return entry.number, len(entry.sample.operators[0].replicas), managed.asked(entry.decision)

    def carry_out(self, d: Controlled, number: int, before: int, step: Plan, told: Callable[[int, str], None]) -> None:
        """Begin a granted step of an application's deployment: proposed by decision `number`, when it had `before` replicas. `told` gets
        the replicas afterwards and the error, '' without one. Conflict if the number of replicas has changed, or the deployment is being
        changed."""
        with self._lock:
            controller = self._controllers.get(d.name)
            entry = controller.latest if controller is not None else None
            if controller is None or entry is None or controller.busy or d.paused or d.mode != AUTO:
                raise Conflict(f"deployment {d.name!r} is being changed, or nothing is decided about it here")
            now = len(entry.sample.operators[0].replicas)
            if number > entry.number or now != before:
                raise Conflict(f"deployment {d.name!r} has {now} slots on node {self._plant.node} by now: the step was for {before}")
            _log.info("step granted", deployment=d.name, kind=step.kind, slots=step.replicas, why=step.why)
            self._begin(d.name, controller, number, before, step, told)

    def _begin(
        self, name: str, controller: _Controller, number: int, before: int, step: Plan, told: Callable[[int, str], None] | None = None
    ) -> None:
        segment, controller.busy = controller.journal.segment, True

        def work() -> None:
            done = Execution(number, 0.0, before if step.kind in ("prepare", "stand_down") else step.replicas)
            try:
                if step.kind == "balance":
                    self._plant.move(name, step.groups)
                elif step.kind == "prepare":
                    self._plant.prepare(name, step.replicas)
                elif step.kind == "stand_down":
                    self._plant.stand_down(name)
                else:
                    self._plant.scale(name, step.replicas)
            except UdoError as e:
                done = replace(done, replicas=before, error=str(e))
                _log.warning("a step failed", kind=step.kind, deployment=name, slots=step.replicas, error=str(e))
            finally:
                controller.busy = False
            if told is not None:
                told(done.replicas, done.error)
            with contextlib.suppress(OSError):  # the disk is full: the next decision says so
                controller.journal.executed(segment, replace(done, at_s=round(self._wall(), 3)))

        self._plant.beside(work, name)
