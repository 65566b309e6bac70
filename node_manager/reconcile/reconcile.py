"""Brings about what the registry wants, and reports. While the registry is away nothing stops: the last wanted state stays in effect.

One thread reads the wanted state by long poll, one sends heartbeats; each deployment's work runs in a thread of its own, one piece at a
time, so that a slow start delays no other deployment.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Condition, Event, Lock

import structlog

from node_manager import reports
from node_manager.config import DeploymentConfig, Release
from node_manager.manager import Manager
from node_manager.reconcile import in_step
from node_manager.reconcile.lost_moves import LostMoves
from node_manager.registry_calls import RETRY_MOST_S, RegistryCalls, keep_asking
from udo_protocol import supervised
from udo_protocol.errors import NotFound, Refused, UdoError, Unavailable
from udo_protocol.lifecycle import REFUSED
from udo_protocol.listening import reached_at
from udo_protocol.registry.wanted import NodeReport, UpdatePhase, UpdateStep, WantedDeployment, WantedState

_log = structlog.get_logger()
POLL_S = 25
# A node counts as away 10 s after its last report, so it sends a heartbeat at least this often.
BEAT_S = 2.5
# A deployment that could not be brought about (no image yet, operator does not load) is tried again this often; one whose image was refused
# is not, until something changes.
_AGAIN_S = 15.0
# Bound on the message of an unexpected error.
_TOLD_CHARS = 2000
_DEPLOY_WAIT_S = 120.0
_WORKERS = 8
# An instance publishes its counters about this often.
_OBSERVE_S = 1.0
# A registry that is away must not hold up a stop; it notices by itself that the node is gone.
_LEAVE_S = 2.0


@dataclass(frozen=True)
class Removal:
    """The wish for a deployment that this node got from the registry, but that the registry no longer has."""

    name: str


Wish = WantedDeployment | Removal


class Reconciler:
    """See the module."""

    def __init__(self, manager: Manager, registry: RegistryCalls) -> None:
        self._manager, self._registry = manager, registry
        self._node = manager.settings.node
        self._stopping, self._told_placements = Event(), Event()
        self._followed = -1  # the changes of placements that were followed
        self._retrying = partial(keep_asking, self._stopping)
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="reconcile")
        self._lock = Lock()
        self._changed = Condition(self._lock)  # notified when _latest changes
        self._latest: dict[str, Wish] = {}
        self._busy: set[str] = set()
        self._done: dict[str, tuple[Wish, int]] = {}  # deployment -> (the last wish carried out, the acquaintance that knows of it)
        # Counts how often the registry came to know this node anew: it then knows nothing of what was reported before.
        self._acquaintance = 0
        self._has_reported = False
        self._told: dict[str, tuple[WantedDeployment, tuple[str, str]]] = {}  # deployment -> (wish it serves, condition last reported)
        self._again: dict[str, float] = {}  # deployment -> time of the next try after a failure (monotonic)

    def start(self) -> None:
        """Start the threads."""
        loops = {
            "wanted": self._read_wanted,
            "registry-heartbeat": self._beat,
            "canaries": self._observe,
            "conditions": self._follow_conditions,
            "retries": self._try_again,
            "placements": self._follow_placements,
        }
        for kind, work in loops.items():
            supervised.keep(kind, work, self._stopping)

    def stop(self) -> None:
        """Begin no more steps; tell the registry not to wait for this node."""
        self._stopping.set()
        self._told_placements.set()
        with self._changed:
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        supervised.once("leave", self._leave).join(_LEAVE_S)

    def _leave(self) -> None:
        with contextlib.suppress(UdoError):
            self._registry.leave(self._node, self._manager.incarnation)

    def _beat(self) -> None:
        capabilities = asdict(self._manager.driver.capabilities())
        properties = {
            "address": f"{socket.gethostname()}:{self._manager.settings.socket.absolute()}",
            "driver": self._manager.driver.name,
            "capabilities": capabilities,
            "listen": reached_at(self._manager.listen) if self._manager.listen else "",
            "incarnation": self._manager.incarnation,
        }

        def beat() -> None:
            told = self._registry.heartbeat(self._node, **properties, metrics_address=self._manager.metrics_address)
            if told.get("anew") and self._has_reported:
                self._report_all()
            in_step.rest(self._manager.across, self._stopping, BEAT_S)

        self._retrying(beat, "heartbeat")

    def _report_all(self) -> None:
        """Report every deployment again: the registry has been restored, or took this node for lost, or for a former one of its name."""
        with self._lock:
            self._acquaintance += 1
            names = list(self._latest)
        for name in names:
            self._work(name)

    def _read_wanted(self) -> None:
        generation = -1

        def read() -> None:
            nonlocal generation
            wanted = WantedState.parse(self._registry.wanted(self._node, generation, POLL_S, self._manager.incarnation))
            self._manager.across.learn(wanted)
            if self._manager.across.changes != self._followed:
                self._told_placements.set()
            self._take(wanted.deployments)
            if wanted.generation != generation:
                self._manager.lanes.forget_homes(wanted.moved)
            generation = wanted.generation

        self._retrying(read, "wanted", self._manager.lanes.unheard)

    def _follow_placements(self) -> None:
        """Follow the registry's decisions about replicas, report the replicas that hold all that was ENDed, and go on with lost moves."""

        across, lost, again_s = self._manager.across, LostMoves(self._manager), float(POLL_S)

        def follow() -> None:
            nonlocal again_s
            self._told_placements.wait(in_step.LOOK_S if across.replicated else again_s)
            self._told_placements.clear()
            again_s, changes = min(lost.go_on(), POLL_S), across.changes
            if across.replicated or changes != self._followed:
                in_step.follow_decisions(self._manager, self._registry)
                self._followed = changes

        self._retrying(follow, "placements")

    def _observe(self) -> None:
        """While there are canaries: report their counts to the registry, which decides."""

        def observe() -> None:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._manager.canaries.running()) or self._stopping.is_set(), POLL_S):
                    return
            for name, canary in self._manager.canaries.running():
                self._registry.report(self._node, reports.counts(name, canary), self._manager.incarnation)
                canary.confirmed_at = time.monotonic()
            self._stopping.wait(_OBSERVE_S)

        self._retrying(observe, "canaries")

    def _follow_conditions(self) -> None:
        """Report the condition of serving deployments to the registry: when it changes, and at most once in _OBSERVE_S each."""

        def look() -> None:
            for name, (wish, told) in list(self._told.items()):
                condition = self._manager.deployments.condition(name)
                if condition is not None and condition != told:
                    self._tell_condition(name, wish, condition)
            self._stopping.wait(_OBSERVE_S)

        self._retrying(look, "conditions")

    def _tell_condition(self, name: str, wish: WantedDeployment, condition: tuple[str, str]) -> None:
        """Report as a piece of the deployment's work, so that later reports of an update arrive after this one."""
        with self._lock:
            if name in self._busy:
                return
            self._busy.add(name)
        try:
            if self._tell(reports.state(wish, *condition), wish):
                self._told[name] = (wish, condition)
        finally:
            with self._lock:
                self._busy.discard(name)
            if name in self._latest:
                self._work(name)

    def _take(self, deployments: Sequence[WantedDeployment]) -> None:
        names = self._manager.lanes.wanted = frozenset(d.name for d in deployments)
        for gone in [d.name for d in self._manager.deployments.all() if d.source == "registry" and d.name not in names]:
            self._wish(Removal(gone))
        for deployment in deployments:
            self._wish(deployment)

    def _wish(self, wish: Wish) -> None:
        with self._changed:
            if self._latest.get(wish.name) == wish:
                return
            self._latest[wish.name] = wish
            self._changed.notify_all()
        self._work(wish.name)

    def _work(self, name: str) -> None:
        with self._lock:
            if name in self._busy or self._stopping.is_set():
                return
            self._busy.add(name)
        self._pool.submit(supervised.run, "reconcile", lambda: self._until_done(name), self._stopping, name)

    def _until_done(self, name: str) -> None:
        """Carry out the newest wish for one deployment, until the newest one is done or is to be tried again later."""
        while not self._stopping.is_set():
            with self._lock:
                wish, acquaintance = self._latest[name], self._acquaintance
                if self._done.get(name) == (wish, acquaintance):
                    self._busy.discard(name)
                    return
            try:
                done = self._bring_about(wish)
            except Exception as e:
                done = self._failed(wish, e)
            with self._lock:
                if done:
                    self._done[name] = wish, acquaintance
                elif self._latest[name] is wish:  # else this thread goes on with a newer wish
                    self._busy.discard(name)
                    self._later(name)
                    return

    def _later(self, name: str) -> None:
        self._again[name] = time.monotonic() + _AGAIN_S
        self._changed.notify_all()

    def _try_again(self) -> None:
        """Retry failed deployments after a while."""
        while not self._stopping.is_set():
            with self._changed:
                now = time.monotonic()
                due = [name for name, at in self._again.items() if at <= now]
                for name in due:
                    del self._again[name]
                if not due:
                    self._changed.wait(min(self._again.values(), default=now + _AGAIN_S) - now)
            for name in due:
                self._work(name)

    def _failed(self, wish: Wish, e: Exception) -> bool:
        """Tell the registry the reason; return whether there is nothing more to be done about this wish."""
        text, code = str(e), e.code if isinstance(e, UdoError) else UdoError.code
        if not isinstance(e, UdoError):
            supervised.failed("reconcile", wish.name)
            text = f"{type(e).__name__} in node manager {self._node}: {text[:_TOLD_CHARS]}; its log says where"
            if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
                text, code = f"the disk of node {self._node} is full ({e.filename or e}): make room there, then try again", Unavailable.code
        if isinstance(wish, Removal):
            return False
        if wish.update:  # the registry decides, the old version serves
            self._report(reports.step(wish, wish.update, "failed", text, code), wish)
            return True
        refused, text = isinstance(e, Refused), f"{text}{self._instead(wish.name, wish.digest)}"
        self._manager.lanes.unserved[wish.name] = e if isinstance(e, UdoError) else UdoError(text)
        self._report(reports.state(wish, REFUSED if refused else "failed", text, code), wish)
        return refused

    def _bring_about(self, wish: Wish) -> bool:
        manager = self._manager
        if isinstance(wish, Removal):
            manager.lanes.unserved.pop(wish.name, None)
            with contextlib.suppress(NotFound):
                manager.undeploy(wish.name, source="registry")
            self._told.pop(wish.name, None)
            return True
        manager.remove_former(wish.name, wish.operator, wish.made)
        slots = wish.slots_on(self._node)
        if slots == 0:
            return self._elsewhere(wish)
        with contextlib.suppress(NotFound):
            manager.take_over(wish.name)
        if wish.update is None or wish.update.phase != UpdatePhase.CANARY:
            manager.canaries.end(wish.name, wish.update.digest if wish.update else "")
        if wish.update is not None:
            return self._update(wish, wish.update)
        try:
            deployment = manager.deployments.find(wish.name)
        except NotFound:
            deployment = None
        if deployment is None:
            manager.deploy(wish, _DEPLOY_WAIT_S, "registry")
        else:
            deployment.in_all = wish.slots_in_all
            manager.updates.change(wish.name, Release(wish.version, wish.digest, DeploymentConfig(wish.config)), _DEPLOY_WAIT_S)
        manager.ask_slots(wish.name, slots, _DEPLOY_WAIT_S)
        manager.lanes.unserved.pop(wish.name, None)
        self._report(reports.state(wish, reports.ANSWERING), wish)
        return True

    def _elsewhere(self, wish: WantedDeployment) -> bool:
        """Settle a deployment without slots on this node, which then only tells producers where they are."""
        with contextlib.suppress(NotFound):
            self._manager.leave(wish.name, self._stopping)
        self._manager.lanes.unserved.pop(wish.name, None)
        if wish.update is None:
            self._report(reports.state(wish, reports.ANSWERING), wish)
        else:
            done = reports.ANSWERING if wish.update.phase == UpdatePhase.PROMOTE else "ready"
            self._report(reports.step(wish, wish.update, done), wish)
        return True

    def _instead(self, name: str, digest: str) -> str:
        """A sentence that names the other version that continues to serve; '' if there is none."""
        with contextlib.suppress(NotFound):
            slot = self._manager.deployments.find(name).slot
            if slot.wanted is not None and slot.view().owner and slot.wanted.image.digest != digest:
                return f". {slot.wanted.reference} continues to serve on this node"
        return ""

    def _update(self, wish: WantedDeployment, update: UpdateStep) -> bool:
        """Carry out one phase of a two-phase update."""
        name, manager = wish.name, self._manager
        release = Release(update.version, update.digest, DeploymentConfig(wish.config).changed(update.config))
        there = True
        if update.phase != UpdatePhase.PROMOTE:
            try:
                manager.deployments.find(name)
            except NotFound:
                there = self._serve_old(wish, update)
        if update.phase == UpdatePhase.CANARY:
            manager.updates.discard(name)  # left by a former update that came to nothing
            manager.canaries.start(name, update.id, release, update.percent)
            self._report(reports.step(wish, update, "ready"), wish)
            with self._changed:
                self._changed.notify_all()  # wakes the thread that reports counts
        elif update.phase == UpdatePhase.PREPARE:
            if there:
                manager.updates.prepare(name, release, check=False)
            else:
                manager.images.get(wish.operator, update.version, update.digest)
            self._report(reports.step(wish, update, "ready"), wish)
        else:
            try:
                instance = manager.updates.promote_all(name, release, _DEPLOY_WAIT_S)
            except NotFound:  # the old version was refused here
                new = replace(wish, version=update.version, digest=update.digest, config=release.config.document)
                instance = manager.deploy(new, _DEPLOY_WAIT_S, "registry")
            self._report(reports.step(wish, update, reports.ANSWERING, instance), wish)
        return True

    def _serve_old(self, wish: WantedDeployment, update: UpdateStep) -> bool:
        """Serve the old version before an update; False if there is nothing to serve until then, since its image is refused."""
        try:
            self._manager.deploy(wish, _DEPLOY_WAIT_S, "registry")
        except Refused:
            if update.phase == UpdatePhase.CANARY:  # there would be nothing to take a share of
                raise
            return False
        return True

    def _report(self, report: NodeReport, wish: WantedDeployment) -> None:
        """Report to the registry; while it is unavailable, retry until something else is wanted, since it would not ask for the report."""
        while not self._tell(report, wish):
            with self._changed:
                if self._changed.wait_for(lambda: self._latest.get(wish.name) is not wish or self._stopping.is_set(), RETRY_MOST_S):
                    return

    def _tell(self, report: NodeReport, wish: WantedDeployment) -> bool:
        """Report once. Return whether there is nothing more to report: the registry has the report, or refuses it."""
        self._has_reported = True
        try:
            self._registry.report(self._node, report, self._manager.incarnation)
        except UdoError as e:
            _log.warning("report did not reach the registry", deployment=wish.name, state=report.state, error=str(e))
            return not isinstance(e, Unavailable)
        if report.state == reports.ANSWERING:
            self._told[wish.name] = (wish, (reports.ANSWERING, ""))
        elif report.phase is None:
            self._told.pop(wish.name, None)
        return True
