"""Keeps a prepared scale-out fresh: in rounds, the slots that serve make a checkpoint, and those that stand ready read the changes.

A round is the first steps of the moves by which those slots would take over (udo_protocol/state/moving.py), with the versions that the
group map is going to have then: by them a move finds the groups that were read ahead. With the strategy checkpoint no slot stands ready,
and a round makes only the checkpoints: the one at the hand-over then has only the changes since.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import Event, Lock

import structlog

from node_manager.deployments.deployments import NodeDeployment
from node_manager.deployments.move_steps import in_force
from node_manager.deployments.moves import Moves
from node_manager.deployments.reading_ahead import LOOK_CEILING_US, LOOK_INCREMENT_US
from node_manager.slots.loading import NodeParts
from udo_protocol.errors import UdoError
from udo_protocol.queue import access
from udo_protocol.queue import slot as log
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import group_map, moving
from udo_protocol.state.group_map import MoveStep, SlotGroups

_log = structlog.get_logger()
# Bound on the wait for the answer to a frame of the node manager; a slot with much work answers later, and the round goes on without it.
_ANSWER_S = 5.0


class Backup:
    """The backup of one deployment. `over`: it writes nothing more. `lost` returns why it is no longer needed; '' while it is."""

    def __init__(self, node: NodeParts, moves: Moves, deployment: NodeDeployment, refresh_s: float, lost: Callable[[], str]) -> None:
        self._node, self._moves, self._deployment, self._refresh_s, self._lost = node, moves, deployment, refresh_s, lost
        self.over, self.ready = Event(), Event()
        self._writing = Lock()
        self._keys_of = partial(SlotKeys, deployment.name)  # of a slot, by its number
        self._told: dict[int, str] = {}  # slot that stands ready -> its instance that may read the sources
        self._base: SlotGroups | None = None  # the map that the present steps start from
        self._run = ""  # the run of the queue server that has the frames
        self._waits: dict[tuple[int, int], int] = {}  # (slot, version) -> frame that the slot has not answered

    def end(self) -> None:
        """Stop; return when nothing is written any more. Waiters for `ready` see by `over` that it is not."""
        self.over.set()
        with self._writing:
            self.ready.set()  # releases the waiters

    def run(self) -> str:
        """Run rounds until the backup is over ('') or no longer needed (the reason). `ready` is set once a first round is complete."""
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
            if (self._base, self._run) != (now, queue.run_id):  # groups have moved, or the log is another: begin again
                self._told.clear()
                self._waits.clear()
            self._base, self._run = now, queue.run_id
            ready = [slot.number for slot in deployment.prepared.values()]
            steps = group_map.spreading(now, [*(slot.number for slot in deployment.own), *ready]) if ready else []
            first = {step.source: step.version for step in reversed(steps)}  # source -> the version of the first move that names it
            fresh = [self._checkpointed(state, queue, n, first.get(n, now.version + 1)) for n in (first or now.routes)]
            if all([*fresh, *(self._followed(state, queue, steps, number) for number in ready)]):
                self.ready.set()

    def _tell(self, state: Connection, slot: int, version: int, tell: Callable[[], int]) -> int | None:
        """Append a frame to the log of that slot, unless one is unanswered or key groups move; return the unanswered one's number."""
        if self.over.is_set():
            return None
        if (slot, version) not in self._waits and (at := self._moves.tell(state, self._deployment, tell)) is not None:
            self._waits[slot, version] = at
        return self._waits.get((slot, version))

    def _checkpointed(self, state: Connection, queue: Connection, number: int, version: int) -> bool:
        """Whether the slot has made the checkpoint that it was asked for. A slot that has not is not asked again."""
        keys = self._keys_of(number)
        at = self._tell(state, number, version, lambda: moving.prepare_source(queue, keys, version))
        if at is None:
            return False
        if covered := self._within(self._refresh_s, lambda: log.slot_stats(queue, keys).base > at):
            del self._waits[number, version]
        return covered

    def _followed(self, state: Connection, queue: Connection, steps: Iterable[MoveStep], to: int) -> bool:
        """Whether the slot has read all that is going to be its own, as of this call."""
        slot = self._deployment.prepared.get(to)
        owner = slot.view().owner if slot is not None else None
        if owner is None:
            return False
        mine, keys = [step for step in steps if step.to == to], self._keys_of(to)
        if self._told.get(to) != owner.name:  # a new instance has read nothing
            sources = dict.fromkeys(self._keys_of(step.source) for step in mine)
            with contextlib.suppress(LookupError):  # it has just gone
                self._node.servers.widen("state", owner.name, access.adopting(keys, *sources))
            self._told[to] = owner.name
            self._waits = {key: at for key, at in self._waits.items() if key[0] != to}
        for step in mine:  # each after the answer to the one before: a slot compares a frame with the last one only
            at = self._tell(state, to, step.version, partial(self._asked, state, queue, step))
            if at is None or not self._within(_ANSWER_S, lambda at=at: log.slot_stats(queue, keys).emitted >= at):  # type: ignore[misc]
                return False
        done = True
        for step in mine:
            if self._within(self._refresh_s, lambda v=step.version: moving.is_prepared(state, keys, v)):  # type: ignore[misc]
                self._waits.pop((to, step.version), None)
            else:
                done = False
        return done

    def _asked(self, state: Connection, queue: Connection, step: MoveStep) -> int:
        keys = self._keys_of(step.to)
        moving.not_prepared(state, keys, step.version)
        return moving.prepare(queue, keys, step.version, step.groups, step.source)

    def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until `done`; return whether that was within `seconds`, and before the backup was over."""
        backoff, deadline = LinearBackoff(LOOK_INCREMENT_US, LOOK_CEILING_US), time.monotonic() + seconds
        while not (found := done()) and time.monotonic() < deadline and not self.over.is_set():
            backoff.pause()
        return found
