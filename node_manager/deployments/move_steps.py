"""The steps of one move of key groups (udo_protocol/state/moving.py), from whichever step it had reached.

Between the cut in the source and the cut in the other slot the groups' events wait: all that can be done before or after is not done then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Event

import structlog

from node_manager.deployments.deployments import NodeDeployment
from node_manager.deployments.reading_ahead import (
    AHEAD_S,
    LAST_LOOK_S,
    LOOK_INCREMENT_US,
    Interrupted,
    OwnerReads,
    checkpoint_before_cut,
)
from node_manager.slots.loading import NodeParts
from udo_protocol.queue import access, route
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.route import Route
from udo_protocol.state import group_map, moving, rewinding
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.moving import Intent

# The paper's names for its protocols (docs/design/moves.md): the other slot reads the groups ahead, or once they are handed over to it.
CPAL, DIRECT = "cpal", "direct"
STRATEGIES = (CPAL, DIRECT)
# A step takes a checkpoint of the slot's owner, a few milliseconds, while events wait.
_STEP_CEILING_US = 1_500
# The server says at once when an owner has handed over; this often its queue server is asked whether it has lost the request.
_HAND_OVER_MS = 20
# Events that wait are answered before the adopting slot is asked for a checkpoint: producers look after 20 ms at the latest.
_ANSWERED_S = 0.03
_log = structlog.get_logger()
_Done = Callable[[], bool]


@dataclass
class Progress:
    """The progress of a move: how many of its key groups are where they are wanted."""

    moved: int
    total: int
    done: bool = False
    trouble: str = ""  # why it makes no progress


class MoveSteps:
    """The steps of one deployment's moves. `gone`: whether the manager stops, or the deployment is gone; `changed`: signals progress."""

    def __init__(self, node: NodeParts, deployment: NodeDeployment, stopping: Event, changed: Condition, gone: _Done) -> None:
        self._node, self._deployment, self._stopping, self._changed, self._gone = node, deployment, stopping, changed, gone
        self._keys_of = partial(SlotKeys, deployment.name)  # of a slot, by its number
        self._cut_at, self._ms = time.monotonic(), dict[str, float]()  # when each step since the cut was done, for the log

    def _done(self, step: str) -> None:
        self._ms[step] = round((time.monotonic() - self._cut_at) * 1000, 1)

    def run(self, state: Connection, queue: Connection, intent: Intent, progress: Progress) -> None:
        """Do all that is left of a move; its note stays."""
        deployment, first, keys_of = self._deployment, self._deployment.slot.keys, self._keys_of
        for slot in deployment.own:
            rewinding.forget(state, queue, slot.keys)  # a rollback would undo the move
        while True:
            now = in_force(state, deployment)
            adopted = partial(moving.is_adopted, state, keys_of(intent.to), now.routes.get(intent.to, 0))
            if not adopted():
                self._adopt(queue, now, intent.to, adopted)
                self._done("taken_in_ms")
                _log.info("key groups moved", deployment=deployment.name, to=intent.to, version=now.version, **self._ms)
            restore_routes(state, queue, deployment, now)
            source, groups, left = source_of(now, intent)
            with self._changed:
                progress.moved, progress.trouble = progress.total - left, ""
                self._changed.notify_all()
            if not left:
                break
            new = now.moved(groups, source, intent.to)
            if intent.cut < new.version:
                if intent.strategy == CPAL:
                    self._read_ahead(state, queue, new.version, groups, source, intent.to)
                intent = replace(intent, cut=new.version)
                moving.note(state, first, intent)
                if intent.strategy == CPAL:  # of what has changed while the other slot read the one before
                    checkpoint_before_cut(queue, keys_of(source), new.version, self._gone, _STEP_CEILING_US)
            self._cut_at, self._ms = time.monotonic(), {}
            self._deliver(state, queue, new, source, groups, intent.to)

    def _read_ahead(self, state: Connection, queue: Connection, version: int, groups: Sequence[int], source: int, to: int) -> None:
        """Let the other slot's owner read the groups ahead."""
        keys_of, slot = self._keys_of, next(slot for slot in self._deployment.own if slot.number == to)
        rules, ask = access.adopting(slot.keys, keys_of(source)), partial(moving.prepare, queue, slot.keys, version, groups, source)
        reads = OwnerReads(self._node, slot, version, rules, ask)
        if reads.within(state, AHEAD_S, self._gone):
            checkpoint_before_cut(queue, keys_of(source), version, self._gone)
            reads.again(state, LAST_LOOK_S, self._gone)
        reads.end()

    def _deliver(self, state: Connection, queue: Connection, new: SlotGroups, source: int, groups: Sequence[int], to: int) -> None:
        """Make the cut in the source, deliver what its owner hands over, and make the cut in the other slot: all while events wait."""
        keys, keys_there = self._keys_of(source), self._keys_of(to)
        here, there = (new.route(number, self._keys_of) for number in (source, to))
        deliver = partial(moving.deliver, state, keys, keys_there, self._deployment.slot.keys, new)
        if moving.is_handed_over(state, keys, new.version):  # by the log of a queue server that was lost
            route.change(queue, keys, here)
            deliver()
        else:
            at, emitted = moving.cut(queue, keys, here, groups)
            while not deliver(wait_ms=_HAND_OVER_MS):
                if self._gone():
                    raise Interrupted
                if emitted >= at:  # the log has lost the frame, since an owner hands over before it answers
                    moving.cut(queue, keys, here, groups, again=True)
                at, emitted = moving.cut(queue, keys, here, groups)
        self._done("delivered_ms")
        moving.cut(queue, keys_there, there, None)

    def _adopt(self, queue: Connection, now: SlotGroups, to: int, adopted: _Done) -> None:
        """Make the cut in the other slot, and wait until its owner has made the groups part of its state."""

        def serving() -> None:
            self._done("serving_ms")
            self._stopping.wait(_ANSWERED_S)

        cut_and_wait(queue, self._keys_of(to), now.route(to, self._keys_of), None, adopted, self._gone, serving)


def cut_and_wait(
    queue: Connection,
    keys: SlotKeys,
    table: Route,
    groups: Sequence[int] | None,
    done: _Done,
    gone: _Done,
    serving: Callable[[], None] = lambda: None,
) -> None:
    """Make the cut in the slot with these keys, and wait until its owner has done its part. Interrupted once `gone`.

    `serving` is called when adopted groups serve, before they are made part of the state.
    """
    if done():  # the owner did it by the log of a queue server that was lost
        route.change(queue, keys, table)
        return
    backoff = LinearBackoff(LOOK_INCREMENT_US, _STEP_CEILING_US)
    at, emitted = moving.cut(queue, keys, table, groups)
    while not done():
        if gone():
            raise Interrupted
        if emitted >= at:
            # HANDOVER: the log has lost the frame, since an owner does its part before it answers. ADOPT: the groups serve, and the same
            # frame once more makes them part of the state.
            if groups is None:
                serving()
            moving.cut(queue, keys, table, groups, again=True)
        backoff.pause()
        at, emitted = moving.cut(queue, keys, table, groups)


def in_force(state: Connection, deployment: NodeDeployment) -> SlotGroups:
    """The map in force: which slot has which key group."""
    found = group_map.load(state, deployment.slot.keys)
    return found or SlotGroups.even([slot.number for slot in deployment.own], deployment.config.instance.key_groups)


def source_of(now: SlotGroups, intent: Intent) -> tuple[int, list[int], int]:
    """The slot that is next to hand over, the groups that it hands over, and how many are left in all slots."""
    left = [g for g in intent.groups if now.groups[g] != intent.to]
    source = now.groups[left[0]] if left else intent.to
    return source, [g for g in left if now.groups[g] == source], len(left)


def restore_routes(state: Connection, queue: Connection, deployment: NodeDeployment, now: SlotGroups) -> None:
    """Give a new queue server, which knows no routes, those of the slots. A slot gets its route only after it has adopted its groups."""
    for number, version in now.routes.items():
        keys = SlotKeys(deployment.name, number)
        if moving.is_adopted(state, keys, version) and route.version(queue, keys) < version:
            route.change(queue, keys, now.route(number, partial(SlotKeys, deployment.name)))
