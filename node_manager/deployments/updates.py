"""Updates of a node's deployments: a version is prepared as a standby and promoted, in two phases or at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from node_manager.config import DeploymentConfig, Release
from node_manager.deployments.deployments import Deployments
from node_manager.deployments.moves import Moves
from node_manager.deployments.scaling import Scaling
from node_manager.images.images import OperatorImage
from node_manager.instances.instances import Instance
from node_manager.slots.slot import Slot
from node_manager.trials.mirrors import Mirrors
from udo_protocol.errors import Conflict, UdoError, WaitTimeout

# Promotion takes two round trips, and more if a standby has to be loaded anew.
_PROMOTE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Step:
    """Progress of an update on this node; `at_ms` since it was asked for."""

    phase: str
    detail: str
    at_ms: float
    error_code: str = ""


class Updates:
    """The updates of one node. `prune(digests)` removes all other images. Methods may be called from any thread."""

    def __init__(
        self, node: str, deployments: Deployments, mirrors: Mirrors, scaling: Scaling, moves: Moves, prune: Callable[[set[str]], None]
    ) -> None:
        self._node, self._deployments, self._mirrors, self._scaling, self._prune = node, deployments, mirrors, scaling, prune
        self._moves = moves
        self._prepared: dict[str, list[Slot]] = {}  # deployment -> the slots in which an update of it was prepared

    def prepare(self, name: str, release: Release, *, check: bool = True) -> OperatorImage:
        """Pull and load a release as a standby of each slot; return once all are ready. The old version serves whatever happens."""
        deployment = self._deployments.find(name)
        self._moves.require_none(name)
        wanted = self._deployments.wanted(deployment, release)
        self._prepared[name] = slots = deployment.own
        ready = [slot.prepare(wanted, check=check) for slot in slots]
        self._await(ready, wanted.ready_timeout_s, f"{wanted.reference} to be ready")
        self._moves.require_none(name)  # a move that began before the slots were marked as updating
        return wanted.image

    def promote(self, name: str, release: Release) -> str:
        """Let the prepared release answer from here on, and be the wanted one. Return the name of the first slot's instance.

        Conflict if a slot has no standby: none was prepared, or it was lost since. Others may have been promoted.
        """
        deployment = self._deployments.find(name)
        manifest = self._deployments.image(deployment, release.version, release.digest).manifest
        if manifest.key:
            self._mirrors.end(name, serving=manifest)
        prepared = self._prepared.pop(name, [])  # a slot that was added meanwhile follows below
        promoted = [slot.promote() for slot in [s for s in deployment.own if s in prepared] or deployment.own]
        instance = self._await(promoted, _PROMOTE_TIMEOUT_S, f"version {release.version} of {name} to be promoted")
        self._deployments.want(deployment, release)
        self._prune({digest for d in self._deployments.all() for digest in d.digests})
        self._scaling.follow(deployment)
        return instance.name

    def promote_all(self, name: str, release: Release, wait_s: float) -> str:
        """Promote; if a slot has no standby, prepare the release once more. Return the first slot's instance."""
        try:
            return self.promote(name, release)
        except Conflict:
            return self.change(name, release, wait_s)

    def discard(self, name: str) -> None:
        """Give up a prepared update."""
        self._prepared.pop(name, None)
        for slot in self._deployments.find(name).own:
            slot.discard()

    def change(self, name: str, release: Release, wait_s: float) -> str:
        """Serve this from now on, without the registry: prepared and promoted in one step. Return the instance.

        The version served so far is brought up first, also after a restart of this manager, and goes on serving unless the new one becomes
        ready beside it, with its state.
        """
        deployment = self._deployments.find(name)
        wanted = self._deployments.wanted(deployment, release)
        if deployment.digest != release.digest:
            with contextlib.suppress(UdoError):  # it need not load: the new version may be the remedy
                deployment.slot.wait_serving(wait_s)
        owners = [slot.view().owner for slot in deployment.own]
        if owners[0] is not None and all(o and s.wanted == wanted for o, s in zip(owners, deployment.own, strict=True)):
            self.discard(name)
            if release.config != deployment.config:  # in a part that no instance sees, such as its elasticity
                self._deployments.want(deployment, release)
            self._scaling.follow(deployment)
            return owners[0].name
        if any(owners) or deployment.digest != release.digest:
            try:
                self.prepare(name, release, check=False)
                return self.promote(name, release)
            except UdoError:
                self.discard(name)
                raise
        self._deployments.want(deployment, release)
        for slot in deployment.own:
            slot.serve(wanted)
        serving = [slot.wait_serving(wait_s) for slot in deployment.own]
        return serving[0].name if serving[0] else ""

    def update(self, name: str, version: str, digest: str, config: DeploymentConfig | None = None) -> Iterator[Step]:
        """Prepare and promote at once, on this node only; the last step is `done` or `failed`. Without `config` the deployment's stays."""
        start = time.perf_counter()

        def step(phase: str, detail: str = "", code: str = "") -> Step:
            return Step(phase, detail, (time.perf_counter() - start) * 1000, code)

        yield step("pulling")
        try:
            deployment = self._deployments.find(name)
            self._deployments.require_local(deployment, f"udo update {name}")
            image = self._deployments.image(deployment, version, digest)
            yield step("starting", image.manifest.reference)
            release = Release(image.manifest.version, image.digest, deployment.config if config is None else config)
            self.prepare(name, release)
            yield step("ready")
            instance = self.promote_all(name, release, _PROMOTE_TIMEOUT_S)
            yield step("answering", instance)
        except UdoError as e:
            with contextlib.suppress(UdoError):
                self.discard(name)
            yield step("failed", str(e), e.code)
            return
        yield step("done", image.digest)

    def _await(self, futures: list[Future[Instance]], timeout_s: float, what: str) -> Instance:
        """Wait for all of them; return the first one's instance. Raise the first error, once all have ended or the time is over."""
        wait(futures, timeout_s)
        try:
            return [future.result(0) for future in futures][0]
        except FutureTimeout:
            raise WaitTimeout(f"waited {timeout_s:g} s on node {self._node} for {what}") from None
