"""Scale-outs of keyed deployments that are prepared before they are needed (paper 3): prepared, taken over, stood down.

A preparation is noted with the deployment before its first step; the note is removed with the last one. A manager that starts adopts the
slots that stand ready and keeps them fresh, goes on with a take-over, and ends a stand-down, however far the former one had come.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog

from elasticity.scaling.modes import AUTO
from elasticity.scaling.scale_out import ACTIVE_BACKUP, LEAST_REFRESH_S, REFRESH_S, STRATEGIES, STRATEGY
from node_manager.deployments.backup import Backup
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.move_steps import CPAL, DIRECT
from node_manager.deployments.moves import Moves
from node_manager.deployments.preparation import Phase, Preparation
from node_manager.deployments.scaling import Scaling
from node_manager.slots.loading import NodeParts
from udo_protocol import supervised
from udo_protocol.errors import Conflict, ServerLost, UdoError, Unavailable, UsageError, WaitTimeout
from udo_protocol.limits import MOST_SLOTS

# The label of a slot that stands ready, in `udo status`.
STANDS_READY = "prepared"
# Time to go on with a former manager's take-over: its new slots load within their own bounds.
_RESUME_WAIT_S = 600.0
_AGAIN_S = 1.0
_log = structlog.get_logger()


class ScaleOuts:
    """The scale-outs of one node. Methods may be called from any thread; for each deployment one thing is done at a time."""

    def __init__(self, node: NodeParts, deployments: Deployments, scaling: Scaling, moves: Moves) -> None:
        self._node, self._deployments, self._scaling, self._moves = node, deployments, scaling, moves
        self._backups: dict[str, Backup] = {}
        self._busy: dict[str, threading.Lock] = {}
        self._stopping = threading.Event()

    # -- asked for ---------------------------------------------------------------------------------------------------

    def prepare(
        self, name: str, slots: int, strategy: str = STRATEGY, refresh_s: float = REFRESH_S, wait_s: float = 120.0, *, by_hand: bool = False
    ) -> None:
        """Prepare a scale-out to `slots` slots; return once a first copy of the state is complete. Another preparation is changed into this
        one. OperatorError if a slot cannot load: then nothing is prepared. WaitTimeout after `wait_s`: preparing goes on.
        """
        deployment = self._deployments.find(name)
        self._require(deployment, slots, strategy, refresh_s, by_hand)
        with self._alone(name, wait_s):
            deadline = time.monotonic() + wait_s
            self._end_backup(name)
            self._moves.require_able(deployment)
            self._moves.require_quiet(deployment)
            self._require_more(deployment, slots)
            self._note(deployment, Preparation("prepared", slots, strategy, refresh_s, by_hand))
            try:
                self._bring_up(deployment, max(deadline - time.monotonic(), 0.0))
            except UdoError:
                self._stand_down(deployment)
                raise
            backup = self._keep_fresh(deployment)
        done = backup.ready.wait(max(deadline - time.monotonic(), 0.0))
        if backup.over.is_set():
            raise Conflict(f"the scale-out of {name} was taken over or given up while it was being prepared: udo status")
        if not done:
            raise WaitTimeout(f"waited {wait_s:g} s for the state of {name} to be copied; it goes on: udo status")

    def stand_down(self, name: str, wait_s: float = 120.0) -> None:
        """Give up the prepared scale-out and remove its slots, completely. Does nothing without one."""
        with self._alone(name, wait_s):
            if (deployment := self._deployments.get(name)) is not None and deployment.preparation is not None:
                self._stand_down(deployment)

    def scale(self, name: str, slots: int, wait_s: float, strategy: str = STRATEGY) -> None:
        """As Scaling.scale; a prepared scale-out takes over. `strategy` '' or active-backup: new slots read the state of their key groups
        ahead; checkpoint: once the groups are handed over."""
        deployment = self._deployments.find(name)
        wanted = deployment.slot.wanted
        own, keyed = len(deployment.own), wanted is not None and bool(wanted.image.manifest.key)
        there = deployment.preparation
        if not keyed or self._moves.over_nodes(name) or (there is None and slots <= own):
            self._scaling.scale(name, slots, wait_s)
            return
        if there is not None and there.phase == "prepared" and slots == own:
            return  # callers repeat the present number: it ends no preparation
        with self._alone(name, wait_s):
            there = deployment.preparation
            if slots < len(deployment.own):
                self._stand_down(deployment)
                self._scaling.scale(name, slots, wait_s)
                return
            try:
                self._take_over(deployment, slots, wait_s, strategy if there is None else there.strategy)
            except (WaitTimeout, ServerLost, Unavailable):
                if deployment.preparation is not there:  # noted by now: it goes on, here or by the next manager
                    supervised.keep("scale-out", partial(self._resume, deployment), self._stopping, name)
                raise

    def forget(self, name: str) -> None:
        """Stop refreshing a deployment that is about to be removed with all its slots."""
        self._end_backup(name)

    def resume(self) -> None:
        """Go on with what a former manager had noted. To be called after the adoption of its slots."""
        for deployment in self._deployments.all():
            if deployment.preparation is not None:
                supervised.keep("scale-out", partial(self._resume, deployment), self._stopping, deployment.name)

    def stop(self) -> None:
        """Begin nothing more; the next manager goes on."""
        self._stopping.set()
        for name in list(self._backups):
            self._end_backup(name)

    # -- one thing at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self, name: str, wait_s: float) -> Iterator[None]:
        with self._deployments.lock:
            busy = self._busy.setdefault(name, threading.Lock())
        if not busy.acquire(timeout=max(wait_s, 0.0)):
            raise Conflict(f"a scale-out of deployment {name!r} is being prepared or carried out: try again when that is done")
        try:
            yield
        finally:
            busy.release()

    def _require(self, deployment: NodeDeployment, slots: int, strategy: str, refresh_s: float, by_hand: bool) -> None:
        name, wanted = deployment.name, self._deployments.serving(deployment)
        if strategy not in STRATEGIES:
            raise UsageError(f"a scale-out of {name!r}: expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")
        if not refresh_s >= LEAST_REFRESH_S:
            raise UsageError(f"a scale-out of {name!r}: expected at least {LEAST_REFRESH_S:g} s between refreshes, got {refresh_s:g}")
        if not wanted.image.manifest.key:
            raise UsageError(f"deployment {name!r} keeps no state, so there is nothing to prepare: udo scale {name} {slots}")
        if self._moves.over_nodes(name):
            raise UsageError(f"deployment {name!r} is over nodes: expected one whose slots are on one node, where a scale-out is prepared")
        if slots > (most := min(MOST_SLOTS, wanted.config.key_groups)):
            raise UsageError(f"deployment {name!r}: expected at most {most} slots, one for each key group, got {slots}")
        self._require_more(deployment, slots)
        if by_hand and deployment.config.elasticity.mode == AUTO:
            raise Conflict(f"deployment {name!r} is in mode auto, where its load decides: udo scale {name} --mode advise")

    def _require_more(self, deployment: NodeDeployment, slots: int) -> None:
        if slots <= (there := len(deployment.own)):
            name, number = deployment.name, f"{there} slot{'s' * (there != 1)}"
            raise UsageError(f"deployment {name!r} has {number}: expected more than that to prepare for, got {slots}")

    def _note(self, deployment: NodeDeployment, preparation: Preparation | None, phase: Phase | None = None) -> None:
        """Note it on disk, with the slots that stand ready now."""
        with self._deployments.lock:
            if preparation is not None:
                preparation = replace(preparation, phase=phase or preparation.phase, numbers=tuple(deployment.prepared))
            deployment.preparation = preparation
            self._deployments.save()

    # -- prepared ----------------------------------------------------------------------------------------------------

    def _bring_up(self, deployment: NodeDeployment, wait_s: float) -> None:
        """Start the slots that stand ready and wait until all of them serve; none with the strategy checkpoint."""
        there, wanted = deployment.preparation, self._deployments.serving(deployment)
        assert there is not None
        count = there.slots - len(deployment.own) if there.strategy == ACTIVE_BACKUP else 0
        usable = [number for number, slot in deployment.prepared.items() if slot.wanted in (None, wanted)][:count]
        self._remove(deployment, [number for number in deployment.prepared if number not in usable])
        with self._deployments.lock:
            new = [self._scaling.new(deployment, pinned=STANDS_READY) for _ in range(count - len(deployment.prepared))]
            deployment.prepared |= {slot.number: slot for slot in new}
            self._note(deployment, there)
        deadline = time.monotonic() + wait_s
        for slot in deployment.prepared.values():
            slot.serve(wanted)
        for slot in deployment.prepared.values():
            slot.wait_serving(max(deadline - time.monotonic(), 0.0))

    def _keep_fresh(self, deployment: NodeDeployment) -> Backup:
        there, name = deployment.preparation, deployment.name
        assert there is not None
        self._end_backup(name)
        backup = self._backups[name] = Backup(self._node, self._moves, deployment, there.refresh_s, partial(self._lost, deployment))

        def run() -> None:
            if why := backup.run():
                _log.info("what stands prepared is given up", deployment=name, why=why)
            while not backup.over.is_set():
                with contextlib.suppress(Conflict), self._alone(name, _AGAIN_S):
                    if self._backups.get(name) is backup and not self._stopping.is_set():
                        self._stand_down(deployment)
                    return

        supervised.keep("scale-out", run, backup.over, name)
        return backup

    def _lost(self, deployment: NodeDeployment) -> str:
        """Why the preparation is no longer needed; '' while it is."""
        there = deployment.preparation
        if self._deployments.get(deployment.name) is not deployment or there is None:
            return "it is gone"
        slots = [*deployment.own, *deployment.prepared.values()]
        if deployment.canary is not None or any(slot.updating for slot in slots):
            return "its version is being changed"
        if len({slot.wanted.image.digest for slot in slots if slot.wanted is not None}) > 1:
            return "its version was changed"
        if len(deployment.own) >= there.slots:
            return "it has as many slots by now"
        with contextlib.suppress(UsageError):  # settings of a later release
            if not there.by_hand and deployment.config.elasticity.mode != AUTO:
                return "it is not in mode auto any more"
        return ""

    def _end_backup(self, name: str) -> None:
        if (backup := self._backups.pop(name, None)) is not None:
            backup.end()

    # -- taken over, stood down --------------------------------------------------------------------------------------

    def _take_over(self, deployment: NodeDeployment, slots: int, wait_s: float, strategy: str) -> None:
        there = deployment.preparation or Preparation("taking over", slots, strategy, REFRESH_S)
        self._moves.require_able(deployment)
        self._end_backup(deployment.name)
        self._moves.fix(deployment)  # while no map is stored, it follows from the present slots, which are about to change
        self._note(deployment, replace(there, slots=slots), "taking over")
        with self._deployments.lock:
            wanted = self._deployments.serving(deployment)
            for number, slot in list(deployment.prepared.items()):
                if len(deployment.own) < slots and slot.wanted == wanted and slot.view().owner is not None:
                    slot.pinned = ""
                    deployment.more[number] = deployment.prepared.pop(number)
            self._note(deployment, deployment.preparation)
        try:
            self._scaling.scale(deployment.name, slots, wait_s, DIRECT if strategy and strategy != ACTIVE_BACKUP else CPAL)
        except (WaitTimeout, ServerLost, Unavailable):  # it goes on: the note stays
            raise
        except UdoError:
            self._remove(deployment, list(deployment.prepared))
            self._note(deployment, None)
            raise
        self._remove(deployment, list(deployment.prepared))
        self._note(deployment, None)

    def _stand_down(self, deployment: NodeDeployment) -> None:
        self._end_backup(deployment.name)
        if deployment.preparation is not None:
            self._note(deployment, deployment.preparation, "standing down")
        self._remove(deployment, list(deployment.prepared))
        self._note(deployment, None)

    def _remove(self, deployment: NodeDeployment, numbers: list[int]) -> None:
        """Stop these slots and drop what they hold; forget each once it has ended, at the latest some time after the grace."""
        ended = {number: deployment.prepared[number].stop(drop=True) for number in numbers if number in deployment.prepared}
        for number, done in ended.items():
            with contextlib.suppress(FutureTimeout):  # it is still ending
                done.result(self._node.settings.stop_grace_s + 15)
            with self._deployments.lock:
                deployment.prepared.pop(number, None)

    # -- resumed -----------------------------------------------------------------------------------------------------

    def _resume(self, deployment: NodeDeployment) -> None:
        name = deployment.name
        while not self._stopping.is_set() and self._deployments.get(name) is deployment:
            there = deployment.preparation
            if there is None:
                return
            try:
                with self._alone(name, 0.0):
                    if there is not deployment.preparation:
                        return  # something else was asked for meanwhile
                    _log.info("a scale-out is gone on with", deployment=name, phase=there.phase, slots=there.slots)
                    if there.phase == "standing down":
                        self._stand_down(deployment)
                    elif there.phase == "taking over":
                        self._take_over(deployment, there.slots, _RESUME_WAIT_S, there.strategy)
                    else:
                        self._bring_up(deployment, _RESUME_WAIT_S)
                        self._keep_fresh(deployment)
                    return
            except UdoError as e:
                _log.warning("a scale-out does not get on", deployment=name, phase=there.phase, error=str(e))
                self._stopping.wait(_AGAIN_S)
