"""The node manager without its RPC services: assembles the parts, starts and stops them, and begins and ends deployments.

The wanted deployments outlive every manager: one that starts adopts the instances that run, then starts the rest. It needs no registry for
deployments that it already knows and images that it has pulled.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import UTC, datetime
from threading import Event, Lock

from elasticity.scaling.modes import AUTO
from node_manager import home_format
from node_manager.config import DeploymentConfig, Release
from node_manager.control import own_policies
from node_manager.control.controllers import Controllers
from node_manager.control.downtime import Downtime
from node_manager.control.metering import Meter
from node_manager.control.monitor import Monitor
from node_manager.control.neighbours import Neighbours
from node_manager.control.plant import NodePlant, Sensors
from node_manager.deployments import adoption
from node_manager.deployments.across import Across
from node_manager.deployments.canaries import Canaries
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.deployments.lanes import Catalogue, Lanes
from node_manager.deployments.moves import Moves
from node_manager.deployments.scale_out import ScaleOuts
from node_manager.deployments.scaling import Scaling
from node_manager.deployments.updates import Updates
from node_manager.drivers import available
from node_manager.drivers.base import Driver
from node_manager.files import lock
from node_manager.homes import Homes, incarnation
from node_manager.images.images import Images
from node_manager.instances.instances import Instances
from node_manager.instances.pool import Pool
from node_manager.replicas.copies import Copies, clean
from node_manager.replicas.sources import Sources
from node_manager.servers.binaries import Role
from node_manager.servers.embedded import Servers
from node_manager.servers.tls_relay import TlsRelay
from node_manager.settings import NodeSettings
from node_manager.slots.loading import NodeParts
from node_manager.trials.mirrors import MirrorFindings, Mirrors
from node_manager.trials.together import together
from udo_protocol import supervised
from udo_protocol.errors import Conflict, SlotBroken, UdoError
from udo_protocol.listening import with_port
from udo_protocol.queue import slot as log
from udo_protocol.queue import untrusted
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state import dead_letters
from udo_protocol.state.group_map import FIRST_VERSION


def hold_home(settings: NodeSettings) -> int:
    """Hold the home until the returned descriptor is closed. Conflict if another node manager has it.

    Making a Manager writes into the home, so hold the home first where another manager may have it.
    """
    settings.prepare()
    taken = "a node manager (pid {pid}) already runs with home " + f"{settings.home}; stop it or choose another --home"
    return lock(settings.home / "lock", taken)


class Manager:
    """See the module. Methods may be called from any thread."""

    def __init__(self, settings: NodeSettings, catalogue: Catalogue | None = None, driver: Driver | None = None) -> None:
        self.driver = driver or available.make(settings)
        self.settings, self.catalogue = settings, catalogue
        self.started_at = datetime.now(UTC)
        self.metrics_address = ""
        self.incarnation = ""  # tells nodes of one name apart: that of its state server, once that runs
        self.servers = Servers(settings, self._server_restarted)
        self.listen = ""  # HOST:PORT for other hosts, once the home is this manager's
        self.relay = TlsRelay(settings.home, settings.queue_listen, settings.certificates, self.servers.socket("queue"))
        self.across = Across(settings.node, settings.home, settings.certificates, settings.token)
        self.images = Images(settings.images, catalogue, whole=self.driver.capabilities().runs_images, python_tag=self.driver.python_tag)
        self.instances = Instances(settings, self.driver, self.servers)
        self.pool = Pool(self.instances, settings.warm, settings.stop_grace_s)
        self.engines = Pool(self.instances, settings.warm, settings.stop_grace_s, engines=True)
        self._node = NodeParts(settings, self.servers, self.instances, self.pool, self.engines, self.images)
        self.deployments = Deployments(self._node, self.images)
        self.mirrors = Mirrors(self._node)
        self.downtime = Downtime(self.deployments)
        self.moves = Moves(self._node, self.deployments, self.across, catalogue, self.downtime.moved)
        self.scaling = Scaling(self._node, self.deployments, self.moves)
        self.scale_outs = ScaleOuts(self._node, self.deployments, self.scaling, self.moves)
        self.canaries = Canaries(self.deployments, self.scaling, self.moves, self.mirrors)
        self.updates = Updates(settings.node, self.deployments, self.mirrors, self.scaling, self.moves, self._prune)
        self.sources = Sources(self._node, self.deployments, self.across)
        self.copies = Copies(self._node, self.deployments, self.across)
        self.homes = Homes(settings.node, catalogue, lambda: self.servers.connect("state"))
        self.lanes = Lanes(self._node, self.deployments, self.images, self.homes, self.moves, catalogue)
        self.meter = Meter(settings.usage)
        self.monitor = Monitor(self.servers, self.driver, self.deployments, self.meter, settings.decide_s)
        names = own_policies.read(settings.policies)
        self.neighbours = Neighbours(self.across)
        sensors = Sensors(self.monitor, self.neighbours, self.downtime)
        self.plant = NodePlant(self._node, sensors, self.deployments, self.scale_outs, self.moves, self.across, names)
        self.controllers = Controllers(self.plant, settings.journals, time.time, settings.decide_s)
        self.monitor.listeners += [self.downtime.look, self.controllers.tick]
        self._lock_fd, self._dropping = -1, Lock()

    def lock_home(self, held: int | None = None) -> None:
        """Conflict if another node manager has this home; Unavailable if its format cannot be used, or a file in it is damaged. `held`: the
        descriptor from `hold_home`, if that was called first."""
        self._lock_fd = hold_home(self.settings) if held is None else held
        home_format.convert(self.settings.home)
        self.deployments.kept()
        self.listen = with_port(self.settings.listen, self.settings.home / "port")
        self.relay.choose_port()

    def start(self) -> None:
        """Adopt the instances of a former manager, then start the rest of what is wanted."""
        self.images.clean()
        self.servers.start()
        self.relay.start()
        with contextlib.closing(self.servers.connect("state")) as state:
            clean(state, self.copies.discard)
            self.incarnation = incarnation(state)
        adoption.adopt(self._node, self.images, self.deployments, self.scaling, self.lanes, self.mirrors)
        with contextlib.suppress(UdoError):  # anything still left is dropped before a deployment of that name begins
            self._drop_left()
        self.moves.resume()
        self.scale_outs.resume()
        self.monitor.start()
        self.neighbours.start()

    def stop(self) -> None:
        """Stop all instances and servers; the wanted deployments stay on disk for the next start. A step that fails ends no other."""
        steps: list[Callable[[], object]] = [self.monitor.stop, self.neighbours.stop, self.scale_outs.stop, self.moves.stop]
        steps += [self.copies.stop, self._end_canaries, self.mirrors.end, self._stop_slots, self.pool.stop, self.engines.stop]
        steps += [self.driver.close, self.relay.stop, self.servers.stop, lambda: self.settings.socket.unlink(missing_ok=True)]
        for step in steps:
            try:
                step()
            except Exception:
                supervised.failed("stop", getattr(step, "__qualname__", ""))
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def _end_canaries(self) -> None:
        for deployment in self.deployments.all():
            self.canaries.end_keyed(deployment)

    def _stop_slots(self) -> None:
        for done in [slot.stop(drop=False) for slot in self.deployments.close()]:
            with contextlib.suppress(FutureTimeout):
                done.result(self.settings.stop_grace_s + 15)

    def _server_restarted(self, role: Role) -> None:
        for slot in self.deployments.slots():
            slot.server_restarted(role)
        if role == "queue":
            self.moves.resume()

    def _prune(self, used: set[str]) -> None:
        for reference in self.images.prune(used):
            self.driver.forget(reference)

    def deploy(self, wanted: WantedDeployment, wait_s: float, source: str = "local") -> str:
        """Make the operator callable and wait for it; the same call again changes nothing. Return the instance's name.

        A new keyed deployment begins with the wanted number of slots; any other is scaled afterwards.
        """
        name, config = wanted.name, DeploymentConfig(wanted.config)
        image = self.images.get(wanted.operator, wanted.version, wanted.digest)
        config.require_valid()
        self._drop_left(name)
        with self.copies.lock, self.deployments.lock:
            deployment = self.deployments.get(name)
            if deployment is None:
                taken = self.copies.slots(name, None)
                first, term = taken[0] if taken else (None, FIRST_VERSION)
                deployment = self.deployments.new(name, image, config, source, first or 0)
                deployment.terms[deployment.slot.number] = term
                self.scaling.take_over(deployment, taken[1:])
                if image.manifest.key:
                    self.scaling.begin(deployment, wanted.slots_on(self.settings.node))
            elif (deployment.operator, deployment.digest) != (wanted.operator, image.digest):
                there = f"{deployment.operator}@{deployment.version} ({deployment.digest})"
                raise Conflict(f"deployment {name!r} on node {self.settings.node} serves {there}; change it with: udo update {name}")
            elif source == "local":
                self.deployments.require_local(deployment, f"udo deploy {name}")
            deployment.source, deployment.in_all, deployment.made = source, wanted.slots_in_all, wanted.made
        instance = self.updates.change(name, Release(image.manifest.version, image.digest, config), wait_s)
        self.copies.taken(deployment)
        return instance

    def ask_slots(self, name: str, count: int, wait_s: float) -> None:
        """Scale to the number of slots asked for. In mode auto the number then changes by itself: only a request for another one counts."""
        deployment = self.deployments.find(name)
        deployment.config.require_valid()
        controlled = self.plant.controlled(deployment)
        if controlled.mode != AUTO or deployment.asked != count:
            self.scale_outs.scale(name, count, wait_s)
        with self.deployments.lock:
            if deployment.asked != count:
                deployment.asked = count
                self.deployments.save()

    def take_over(self, name: str) -> None:
        """Give a deployment that is here the slots of lost nodes, of which this node has copies.

        A deployment whose slots were given to other nodes since is removed, with its state. Unavailable as in Copies.slots.
        """
        deployment = self.deployments.find(name)
        try:
            taken = self.copies.slots(name, deployment)
        except Conflict:
            self.undeploy(name, source="registry")
            return
        if not taken:
            return
        with self.deployments.lock:
            wanted, known = self.deployments.serving(deployment), set(deployment.more)
            self.scaling.take_over(deployment, taken)
            self.deployments.save()
        self.copies.taken(deployment)
        for number, slot in list(deployment.more.items()):
            if number not in known:
                slot.serve(wanted)

    def undeploy(self, name: str, source: str = "local", *, drop_state: bool = True) -> None:
        """Stop its instances and remove all that its slots hold.

        Without `drop_state`, Conflict if they hold keyed sessions or dead letters.
        """
        deployment = self.deployments.find(name)
        if source == "local":
            self.deployments.require_local(deployment, f"udo undeploy {name}")
        if not drop_state:
            self._require_empty(deployment)
        self.canaries.end_keyed(deployment)
        self.mirrors.end(name)
        self.scale_outs.forget(name)
        self.deployments.remove(name)
        ended = {slot.keys: slot.stop(drop=True) for slot in deployment.slots}
        self.deployments.removed([keys for keys, done in ended.items() if done.result(self.settings.stop_grace_s + 15)])

    def _drop_left(self, name: str = "") -> None:
        """Drop what interrupted removals have left: of all deployments, or of one."""
        if not self.deployments.left(name):
            return
        with (
            self._dropping,
            contextlib.closing(self.servers.connect("state")) as state,
            contextlib.closing(self.servers.connect("queue")) as queue,
        ):
            left = self.deployments.left(name)  # others may have dropped it meanwhile
            for keys in left:
                log.drop_slot(state, queue, keys)
            self.deployments.removed(left)

    def remove_former(self, name: str, operator: str, made: int | None) -> None:
        """Undeploy a deployment of that name which is not the wanted one, but a former one whose end this node has missed.

        `made`: the wanted one's number (None: a registry that gives no numbers). A deployment without a number counts as the wanted one.
        """
        with self.deployments.lock:
            deployment = self.deployments.get(name)
            if deployment is None:
                return
            if deployment.made is None and made is not None:
                deployment.made = made
                self.deployments.save()
            former = made is not None and made > (deployment.made or 0)
        if former or deployment.operator != operator:
            self.undeploy(name, source="registry")

    def leave(self, name: str, stopping: Event) -> None:
        """Remove a deployment over nodes that has no slots on this node any more; during a step, once no lane is open any more."""
        deployment, placed = self.deployments.find(name), self.across.find(name)
        if placed is not None and placed.step is not None:  # until the step is over the deployment gets no new slot here
            self.scaling.wait_unused(deployment, stopping)
        self.undeploy(name, source="registry")

    def _require_empty(self, deployment: NodeDeployment) -> None:
        name, where = deployment.name, f"on node {self.settings.node}"
        try:
            with contextlib.closing(self.servers.connect("state")) as state:
                (sessions,) = untrusted.read(state, ("HLEN", deployment.slot.keys.sessions))
                letters = sum(dead_letters.count(state, s.keys) for s in deployment.slots)
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
        """Let a version answer beside the serving one, on this node, and yield the differences. Serving is not affected."""
        deployment = self.deployments.find(name)
        wanted = self.deployments.wanted(deployment, Release(version, digest, deployment.config))
        if wanted.image.manifest.key:
            self.moves.require_none(name)
        each = -(-examples // len(deployment.own))
        yield from together([self.mirrors.run(slot, wanted, for_s, each, stop) for slot in deployment.own], stop)
