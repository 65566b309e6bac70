"""The node manager without its wire: puts the parts together, starts and stops them, and begins and ends deployments.

What is wanted outlives everything: a manager that starts adopts what runs, then brings the rest about. It needs no
registry for what it has already been told and pulled.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import UTC, datetime
from threading import Event
from typing import Any

from node_manager import home_format
from node_manager.deployments import adoption
from node_manager.deployments.canaries import Canaries
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.lanes import Catalogue, Lanes
from node_manager.deployments.scaling import Scaling
from node_manager.deployments.updates import Updates
from node_manager.drivers import available
from node_manager.drivers.base import Driver
from node_manager.files import lock
from node_manager.homes import Homes
from node_manager.images.images import Images
from node_manager.instances.instances import InstanceConfig, Instances
from node_manager.instances.pool import Pool
from node_manager.servers.binaries import Role
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from node_manager.slots.loading import NodeParts
from node_manager.trials.mirrors import MirrorFindings, Mirrors
from node_manager.trials.together import together
from udo_protocol.errors import Conflict, SlotBroken
from udo_protocol.state import dead_letters, untrusted


class Manager:
    """See the module. Methods may be called from any thread."""

    def __init__(self, settings: NodeSettings, catalogue: Catalogue | None = None, driver: Driver | None = None) -> None:
        self.driver = driver or available.make(settings)
        self.settings, self.catalogue = settings, catalogue
        self.started_at = datetime.now(UTC)
        self.metrics_address = ""
        self.servers = Servers(settings, self._server_restarted)
        self.images = Images(settings.images, catalogue, whole=self.driver.capabilities().runs_images, python_tag=self.driver.python_tag)
        self.instances = Instances(settings, self.driver, self.servers)
        self.pool = Pool(self.instances, settings.warm, settings.stop_grace_s)
        self._node = NodeParts(settings, self.servers, self.instances, self.pool)
        self.deployments = Deployments(self._node, self.images)
        self.mirrors = Mirrors(self._node)
        self.scaling = Scaling(self._node, self.deployments)
        self.canaries = Canaries(self.deployments, self.scaling, self.mirrors)
        self.updates = Updates(settings.node, self.deployments, self.mirrors, self.scaling, self._prune)
        self.homes = Homes(settings.node, catalogue, lambda: self.servers.connect("state"))
        self.lanes = Lanes(self._node, self.deployments, self.images, self.homes, catalogue)
        self._lock_fd = -1

    def lock_home(self) -> None:
        """Conflict if another node manager has this home; Unavailable if it is of a format that cannot be used."""
        self.settings.prepare()
        taken = "a node manager (pid {pid}) already runs with home " + f"{self.settings.home}; stop it or choose another --home"
        self._lock_fd = lock(self.settings.home / "lock", taken)
        home_format.settle(self.settings.home)

    def start(self) -> None:
        """Adopt what a former manager left, then bring about what is wanted."""
        self.images.clean()
        self.servers.start()
        adoption.adopt(self._node, self.images, self.deployments, self.scaling, self.lanes, self.mirrors)

    def stop(self) -> None:
        """Stop all instances and servers; what is wanted stays on disk for the next start."""
        for deployment in self.deployments.all():
            self.canaries.end_keyed(deployment)
        self.mirrors.end()
        for done in [slot.stop(drop=False) for slot in self.deployments.close()]:
            with contextlib.suppress(FutureTimeout):
                done.result(self.settings.stop_grace_s + 15)
        self.pool.stop()
        self.driver.close()
        self.servers.stop()
        self.settings.socket.unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def _server_restarted(self, role: Role) -> None:
        for slot in self.deployments.slots():
            slot.server_restarted(role)

    def _prune(self, used: set[str]) -> None:
        for reference in self.images.prune(used):
            self.driver.forget(reference)

    def deploy(
        self,
        name: str,
        operator: str,
        version: str,
        digest: str,
        config: dict[str, Any],
        wait_s: float,
        source: str = "local",
        slots: int = 1,
    ) -> str:
        """Make it callable and wait for it; the same again changes nothing. Answers the instance.

        `slots` are those of a new keyed deployment, which keeps them; other ones are scaled.
        """
        image = self.images.get(operator, version, digest)
        InstanceConfig.parse(config)
        with self.deployments.lock:
            deployment = self.deployments.get(name)
            if deployment is None:
                deployment = self.deployments.new(name, image, config, source)
                if image.manifest.key:
                    self.scaling.begin(deployment, slots)
            elif (deployment.operator, deployment.digest) != (operator, image.digest):
                there = f"{deployment.operator}@{deployment.version} ({deployment.digest})"
                raise Conflict(f"deployment {name!r} on node {self.settings.node} serves {there}; change it with: udo update {name}")
            elif source == "local":
                self.deployments.require_local(deployment, f"udo deploy {name}")
            deployment.source = source
        return self.updates.change(name, image.manifest.version, image.digest, config, wait_s)

    def undeploy(self, name: str, source: str = "local", *, drop_state: bool = True) -> None:
        """Stop its instances and remove all its slots left behind.

        Without `drop_state`, Conflict if keyed sessions or dead letters are among it.
        """
        deployment = self.deployments.find(name)
        if source == "local":
            self.deployments.require_local(deployment, f"udo undeploy {name}")
        if not drop_state:
            self._require_empty(deployment)
        self.canaries.end_keyed(deployment)
        self.mirrors.end(name)
        self.deployments.remove(name)
        for done in [slot.stop(drop=True) for slot in deployment.slots]:
            done.result(self.settings.stop_grace_s + 15)

    def _require_empty(self, deployment: NodeDeployment) -> None:
        name, where = deployment.name, f"on node {self.settings.node}"
        try:
            with contextlib.closing(self.servers.connect("state")) as state:
                (sessions,) = untrusted.read(state, ("HLEN", f"{deployment.slot.prefix}sessions"))
                letters = sum(dead_letters.count(state, s.prefix) for s in deployment.slots)
        except SlotBroken as e:
            raise Conflict(f"what deployment {name!r} holds cannot be counted and would be lost: {e}. Use --drop-state") from None
        if letters:
            held, remedy = f"{letters} dead letters {where} (udo dead ls {name})", "Send them again or drop them, or use --drop-state"
        elif sessions:
            held, remedy = f"the state of {sessions} sessions {where} (udo state ls {name})", "Export what is needed, then use --drop-state"
        else:
            return
        raise Conflict(f"deployment {name!r} holds {held}, which would be lost. {remedy}")

    def diff(self, name: str, version: str, digest: str, for_s: float, examples: int, stop: Event) -> Iterator[MirrorFindings]:
        """Let a version answer beside the serving one, on this node, and tell what differs. What serves is not touched."""
        deployment = self.deployments.find(name)
        wanted = self.deployments.wanted(deployment, version, digest)
        if wanted.image.manifest.key:
            deployment.require_one_slot("a diff of a keyed operator")
        each = -(-examples // len(deployment.own))
        yield from together([self.mirrors.run(slot, wanted, for_s, each, stop) for slot in deployment.own], stop)
