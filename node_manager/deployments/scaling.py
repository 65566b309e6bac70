"""Slots beside a deployment's first: more of its own (`udo scale`), a canary's, and those that only answer the lanes they have.

A lane stays in the slot it was opened in, so that its order holds. A slot that gets no new lanes any more serves the deployment's version,
and is removed when it has had no lane for a while.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from threading import Event

from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.move_steps import CPAL
from node_manager.deployments.moves import Moves
from node_manager.slots.loading import NodeParts
from node_manager.slots.slot import Slot
from udo_protocol.errors import ServerLost, SlotBroken, UdoError, UsageError
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.queue.slot import slot_stats
from udo_protocol.state import group_map

_LANES_WAIT_S, _LANES_LOOK_S = 60.0, 0.25


class Scaling:
    """The slots of one node's deployments beside their first. Methods may be called from any thread."""

    def __init__(self, node: NodeParts, deployments: Deployments, moves: Moves) -> None:
        self._node, self._deployments, self._moves = node, deployments, moves
        self._lock = deployments.lock

    def new(self, deployment: NodeDeployment, number: int = 0, *, pinned: str = "") -> Slot:
        """Make a slot with that number, or the next one. It removes itself once it gets no new lanes and has none left.

        Unavailable while the node stops.
        """
        self._deployments.require_open()

        def idle(slot: Slot) -> None:
            if slot.number in deployment.beside and deployment.canary_slot is not slot:
                self.remove(deployment, slot)

        return Slot(self._node, deployment.name, number or deployment.take_number(), pinned=pinned, on_idle=idle)

    def remove(self, deployment: NodeDeployment, slot: Slot) -> None:
        """Stop it and drop what it holds; its dead letters go to the first slot."""
        with self._lock:
            deployment.beside.pop(slot.number, None)
            self._deployments.save()
        slot.stop(drop=True, letters_to=deployment.slot.keys)

    def begin(self, deployment: NodeDeployment, count: int) -> None:
        """Give a new keyed deployment its slots, before the first lane is opened, so that no key group has to move."""
        with self._lock:
            while len(deployment.own) < count:
                slot = self.new(deployment)
                deployment.more[slot.number] = slot

    def take_over(self, deployment: NodeDeployment, slots: Sequence[tuple[int | None, int]]) -> None:
        """Give a deployment these further slots (number, term), whose state is already on this node. They are not saved yet."""
        with self._lock:
            for number, term in slots:
                slot = self.new(deployment, number or 0)
                deployment.more[slot.number], deployment.terms[slot.number] = slot, term

    def scale(self, name: str, count: int, wait_s: float, strategy: str = CPAL) -> None:
        """Give the deployment that many slots on this node; return once all of them serve. The same call again changes nothing.

        Surplus slots get no new lanes and answer those they have. A keyed operator's key groups are spread evenly over the slots again, by
        moves with that strategy. OperatorError if a new slot cannot load.
        """
        deployment = self._deployments.find(name)
        if not 1 <= count <= MOST_SLOTS:
            raise UsageError(f"slots of deployment {name!r}: expected 1 to {MOST_SLOTS}, got {count}")
        wanted = self._deployments.serving(deployment)
        # In a deployment over nodes a new slot gets key groups by moves, and a slot that is to go has none any more.
        keyed = bool(wanted.image.manifest.key) and not self._moves.over_nodes(name)
        if keyed and count > (groups := wanted.config.key_groups):
            raise UsageError(f"deployment {name!r} has {groups} key groups: expected at most as many slots, got {count}")
        if keyed and count != len(deployment.own):
            self._moves.require_able(deployment)
            self._moves.fix(deployment)
        with self._lock:
            while len(deployment.own) < count:
                slot = self.new(deployment)
                deployment.more[slot.number] = slot
                slot.serve(wanted)
            self._deployments.save()
        for slot in deployment.own[1:]:
            slot.wait_serving(wait_s)
        if keyed:
            self._spread(deployment, count, wait_s, strategy)
        with self._lock:
            while len(deployment.own) > count:
                number, slot = deployment.more.popitem()
                slot.used_at = time.monotonic()
                deployment.beside[number] = slot
            self._deployments.save()

    def _spread(self, deployment: NodeDeployment, count: int, wait_s: float, strategy: str) -> None:
        """Give new slots their share of the key groups, and move the groups of surplus slots away."""
        numbers = [slot.number for slot in deployment.own]
        now = self._moves.map(deployment)
        if now.slots == numbers[:count]:  # the right slots have groups: left as it is, also if somebody has moved groups by hand
            return
        for number, groups in group_map.shares(now, numbers[:count]).items():
            for _ in self._moves.move(deployment.name, groups, number, strategy, wait_s):
                pass
        self._moves.leave_out(deployment, numbers[count:])

    def wait_unused(self, deployment: NodeDeployment, stopping: Event) -> None:
        """Wait until no lanes are open: an attempt that began when there were slots here ENDs in these, too. One that takes longer than a
        minute is repeated."""
        deadline = time.monotonic() + _LANES_WAIT_S
        with contextlib.suppress(ServerLost, SlotBroken), contextlib.closing(self._node.servers.glance("queue")) as queue:
            while time.monotonic() < deadline and any(slot_stats(queue, slot.keys).lanes for slot in deployment.own):
                if stopping.wait(_LANES_LOOK_S):
                    return

    def follow(self, deployment: NodeDeployment, going_to: str = "", only: Slot | None = None) -> None:
        """Let slots that took no part in an update serve the deployment's version: those that get no new lanes, and those that were added
        while it was prepared. A slot that serves the version it is about to get (`going_to`, a digest) is left alone."""
        with self._lock:
            running = deployment.canary_slot
            there = [s for s in (*deployment.own, *deployment.beside.values()) if s is not running and only in (None, s)]
            slots = [s for s in there if not s.updating]
        if not slots:
            return
        with contextlib.suppress(UdoError):  # a slot is just being stopped
            wanted = self._deployments.serving(deployment)
            for slot in slots:
                if slot.wanted is None or (slot.wanted.image.digest != going_to and slot.wanted != wanted):
                    slot.serve(wanted)
