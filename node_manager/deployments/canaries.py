"""Begins and ends the canaries of a node's deployments."""

from __future__ import annotations

from node_manager.config import Release
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.moves import Moves
from node_manager.deployments.scaling import Scaling
from node_manager.slots.loading import Wanted
from node_manager.trials.canaries import Canary
from node_manager.trials.keyed_canaries import KeyedCanary
from node_manager.trials.mirrors import Mirrors
from udo_protocol.errors import UdoError


class Canaries:
    """The canaries of one node. Methods may be called from any thread."""

    def __init__(self, deployments: Deployments, scaling: Scaling, moves: Moves, mirrors: Mirrors) -> None:
        self._deployments, self._scaling, self._moves, self._mirrors = deployments, scaling, moves, mirrors
        self._lock = deployments.lock

    def running(self) -> list[tuple[str, Canary | KeyedCanary]]:
        """(deployment, canary) of all that run."""
        return [(d.name, c) for d in self._deployments.all() if (c := d.canary) is not None and c.running]

    def describe(self, name: str, number: int) -> str:
        """The running canary of this slot, in a few words; '' if there is none."""
        deployment = self._deployments.get(name)
        canary = deployment.canary if deployment is not None else None
        return canary.describe(number) if canary is not None and canary.running else ""

    def start(self, name: str, update_id: str, release: Release, percent: float) -> None:
        """Let a release answer `percent` of the new lanes, in a slot of its own; return once it does. OperatorError if it cannot.

        A canary of a keyed deployment tries that share of the key groups beside the owner of each slot. Repeating the call changes nothing,
        except that a keyed canary is also tried in slots added since. After a restart the canary goes on with the slot it had.
        """
        deployment = self._deployments.find(name)
        wanted = self._deployments.wanted(deployment, release)
        if wanted.image.manifest.key:
            self._start_keyed(deployment, update_id, wanted, percent)
            return
        if deployment.canary is not None and deployment.canary.update_id == update_id:
            return
        with self._lock:
            deployment.canary = None
            slot = next((s for s in deployment.beside.values() if s.number in deployment.adopted and s.wanted == wanted), None)
            if slot is None:
                slot = self._scaling.new(deployment, pinned="canary")
                deployment.beside[slot.number] = slot
                self._deployments.save()
                slot.serve(wanted)
        try:
            slot.wait_serving(wanted.ready_timeout_s)
        except UdoError:
            self._scaling.remove(deployment, slot)
            raise
        with self._lock:
            deployment.canary = Canary(update_id, wanted.image.manifest.version, wanted.image.digest, percent, slot)

    def _start_keyed(self, deployment: NodeDeployment, update_id: str, wanted: Wanted, percent: float) -> None:
        canary = deployment.canary
        if not isinstance(canary, KeyedCanary) or canary.update_id != update_id:
            self.end_keyed(deployment)
            with self._lock:  # from here on no key groups move
                deployment.canary = canary = KeyedCanary(self._mirrors, wanted, update_id, percent)
        try:
            self._moves.require_none(deployment.name)
            for slot in deployment.own:
                slot.wait_serving(wanted.ready_timeout_s)
            canary.start(deployment.own)
        except UdoError:
            self.end_keyed(deployment)
            raise

    def end(self, name: str, going_to: str = "") -> None:
        """Send no new lanes there; open lanes are answered by the version that is served, or is about to be (`going_to`, a digest)."""
        if (deployment := self._deployments.get(name)) is None:
            return
        self.end_keyed(deployment)
        with self._lock:
            deployment.canary = None
            deployment.adopted.clear()
        self._scaling.follow(deployment, going_to)

    def end_keyed(self, deployment: NodeDeployment) -> None:
        """End the canary of a keyed deployment."""
        canary = deployment.canary
        if not isinstance(canary, KeyedCanary):
            return
        canary.end()
        with self._lock:
            if deployment.canary is canary:
                deployment.canary = None
