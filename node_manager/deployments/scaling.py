"""Slots beside a deployment's first: more of its own (`udo scale`), one for a canary, and those that only answer the lanes they have.

A lane stays in the slot it was opened in, so that its order holds. A slot that gets no new lanes any more serves what the deployment
serves, and is removed when it has had no lane for a while.
"""

from __future__ import annotations

import contextlib
import time

from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.slots.loading import NodeParts
from node_manager.slots.slot import Slot
from udo_protocol.errors import UdoError, UsageError
from udo_protocol.limits import MOST_SLOTS
from udo_protocol.queue import keys


class Scaling:
    """The slots of one node's deployments beside their first. Methods may be called from any thread."""

    def __init__(self, node: NodeParts, deployments: Deployments) -> None:
        self._node, self._deployments = node, deployments
        self._lock = deployments.lock

    def new(self, deployment: NodeDeployment, number: int = 0, *, pinned: str = "") -> Slot:
        """A slot under that number, or the next one. It removes itself once it only answers the lanes it has, and has none."""

        def idle(slot: Slot) -> None:
            canary = deployment.canary
            if slot.number in deployment.beside and (canary is None or canary.slot is not slot):
                self.remove(deployment, slot)

        return Slot(self._node, deployment.name, number or deployment.take_number(), pinned=pinned, on_idle=idle)

    def remove(self, deployment: NodeDeployment, slot: Slot) -> None:
        """Stop it and drop what it holds; its dead letters go to the first slot."""
        with self._lock:
            deployment.beside.pop(slot.number, None)
            self._deployments.save()
        slot.stop(drop=True, letters_to=keys.prefix(deployment.name, 0))

    def scale(self, name: str, count: int, wait_s: float) -> None:
        """Let the deployment have that many slots on this node; returns once all of them serve. The same again changes nothing.

        Slots that are too many get no new lanes and answer those they have. UsageError for a keyed operator and more than one slot,
        OperatorError if a new slot cannot load.
        """
        deployment = self._deployments.find(name)
        if not 1 <= count <= MOST_SLOTS:
            raise UsageError(f"slots of deployment {name!r}: expected 1 to {MOST_SLOTS}, got {count}")
        wanted = self._deployments.serving(deployment)
        if count > 1 and wanted.image.manifest.key:
            raise UsageError(f"deployment {name!r} keeps state per key, which lies in one slot: expected 1 slot, got {count}")
        with self._lock:
            while len(deployment.own) < count:
                slot = self.new(deployment)
                deployment.more[slot.number] = slot
                slot.serve(wanted)
            while len(deployment.own) > count:
                number, slot = deployment.more.popitem()
                slot.used_at = time.monotonic()
                deployment.beside[number] = slot
            self._deployments.save()
        for slot in deployment.own[1:]:
            slot.wait_serving(wait_s)

    def follow(self, deployment: NodeDeployment, going_to: str = "", only: Slot | None = None) -> None:
        """Slots that get no new lanes serve what the deployment serves, or is about to (a digest)."""
        with self._lock:
            running = deployment.canary.slot if deployment.canary else None
            slots = [s for s in deployment.beside.values() if s is not running and only in (None, s)]
        if not slots:
            return
        with contextlib.suppress(UdoError):  # one that is stopped just now
            wanted = self._deployments.serving(deployment)
            for slot in slots:
                if slot.wanted is None or (slot.wanted.image.digest != going_to and slot.wanted != wanted):
                    slot.serve(wanted)
