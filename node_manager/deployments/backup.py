"""Keeps a prepared scale-out fresh: again and again the slots that serve make a checkpoint, and those that stand ready read what is new.

These are the first steps of the moves by which they would take over (udo_protocol/state/moving.py), with the versions that the group map is
going to have then: what was read ahead for a move is found by it. With the strategy checkpoint no slot stands ready, and a round is the
checkpoints alone: what is left for the one at the hand-over is what has changed since.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import Event, Lock

import structlog

from node_manager.deployments.deployments import NodeDeployment
from node_manager.deployments.move_steps import LOOK_CEILING_US, LOOK_INCREMENT_US, in_force, prefixes
from node_manager.deployments.moves import Moves
from node_manager.slots.loading import NodeParts
from udo_protocol.errors import UdoError
from udo_protocol.queue import access
from udo_protocol.queue import slot as log
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.state import group_map, moving
from udo_protocol.state.group_map import MoveStep, SlotGroups

_log = structlog.get_logger()
# A frame of the node manager's is answered within it, or the round goes on without: a slot with much work has it behind that.
_ANSWER_S = 5.0


class Backup:
    """Of one deployment. `over`: it is not to write anything any more. `lost` says why it has lost its reason; '' while it has one."""

    def __init__(self, node: NodeParts, moves: Moves, deployment: NodeDeployment, refresh_s: float, lost: Callable[[], str]) -> None:
        self._node, self._moves, self._deployment, self._refresh_s, self._lost = node, moves, deployment, refresh_s, lost
        self.over, self.ready = Event(), Event()
        self._writing = Lock()
        self._prefix = prefixes(deployment)
        self._told: dict[int, str] = {}  # slot that stands ready -> the instance that may read, and has been told what
        self._base: SlotGroups | None = None  # the map that the present steps go on from
        self._run = ""  # the queue server that has the frames
        self._waits: dict[tuple[int, int], int] = {}  # slot and version -> frame that it has not answered

    def end(self) -> None:
        """Returns when nothing is written any more. `over` tells who waits for `ready` that it is not."""
        self.over.set()
        with self._writing:
            self.ready.set()  # nobody waits for it any more

    def run(self) -> str:
        """Rounds, until it is over or has lost its reason, which is the answer. `ready` is set when a first one is complete."""
        while not self.over.is_set():
            if why := self._lost():
                return why
            begun = time.monotonic()
            with self._writing:
                try:
                    self._round()
                except UdoError as e:
                    _log.warning("a prepared scale-out is not refreshed", deployment=self._deployment.name, error=str(e))
            self.over.wait(max(self._refresh_s - (time.monotonic() - begun), self._refresh_s / 10))
        return ""

    def _round(self) -> None:
        servers, deployment = self._node.servers, self._deployment
        with contextlib.closing(servers.connect("state")) as state, contextlib.closing(servers.connect("queue")) as queue:
            now = in_force(state, deployment)
            if (self._base, self._run) != (now, queue.run_id):  # groups have moved meanwhile, or the log is another: it begins again
                self._told.clear()
                self._waits.clear()
            self._base, self._run = now, queue.run_id
            ready = [slot.number for slot in deployment.prepared.values()]
            steps = group_map.spreading(now, [*(slot.number for slot in deployment.own), *ready]) if ready else []
            first = {step.source: step.version for step in reversed(steps)}  # by which the move will tell it first
            fresh = [self._checkpointed(state, queue, n, first.get(n, now.version + 1)) for n in (first or now.routes)]
            if all([*fresh, *(self._followed(state, queue, steps, number) for number in ready)]):
                self.ready.set()

    def _tell(self, state: Connection, slot: int, version: int, tell: Callable[[], int]) -> int | None:
        """Append a frame to the log of that slot, unless it has not answered the last one, or key groups move: its number."""
        if self.over.is_set():
            return None
        if (slot, version) not in self._waits and (at := self._moves.tell(state, self._deployment, tell)) is not None:
            self._waits[slot, version] = at
        return self._waits.get((slot, version))

    def _checkpointed(self, state: Connection, queue: Connection, number: int, version: int) -> bool:
        """Whether the slot has made a checkpoint that it was asked for. One that has not is not asked again."""
        prefix = self._prefix(number)
        at = self._tell(state, number, version, lambda: moving.prepare_source(queue, prefix, version))
        if at is None:
            return False
        if covered := self._within(self._refresh_s, lambda: log.slot_stats(queue, prefix).base > at):
            del self._waits[number, version]
        return covered

    def _followed(self, state: Connection, queue: Connection, steps: Iterable[MoveStep], to: int) -> bool:
        """Whether the slot has read all that is going to be its own, as it was when this was called."""
        slot = self._deployment.prepared.get(to)
        owner = slot.view().owner if slot is not None else None
        if owner is None:
            return False
        mine, prefix = [step for step in steps if step.to == to], self._prefix(to)
        if self._told.get(to) != owner.name:  # a new one has read nothing
            sources = dict.fromkeys(self._prefix(step.source) for step in mine)
            with contextlib.suppress(LookupError):  # it has just gone
                self._node.servers.widen("state", owner.name, access.adopting(prefix, *sources))
            self._told[to] = owner.name
            self._waits = {key: at for key, at in self._waits.items() if key[0] != to}
        for step in mine:  # one behind the other's answer: what a frame is compared with is the last one
            at = self._tell(state, to, step.version, partial(self._asked, state, queue, step))
            if at is None or not self._within(_ANSWER_S, lambda at=at: log.slot_stats(queue, prefix).emitted >= at):  # type: ignore[misc]
                return False
        done = True
        for step in mine:
            if self._within(self._refresh_s, lambda v=step.version: moving.is_prepared(state, prefix, v)):  # type: ignore[misc]
                self._waits.pop((to, step.version), None)
            else:
                done = False
        return done

    def _asked(self, state: Connection, queue: Connection, step: MoveStep) -> int:
        prefix = self._prefix(step.to)
        moving.not_prepared(state, prefix, step.version)
        return moving.prepare(queue, prefix, step.version, step.groups, step.source)

    def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Whether it is done within that time, and nothing has ended the round."""
        backoff, deadline = LinearBackoff(LOOK_INCREMENT_US, LOOK_CEILING_US), time.monotonic() + seconds
        while not (found := done()) and time.monotonic() < deadline and not self.over.is_set():
            backoff.pause()
        return found
