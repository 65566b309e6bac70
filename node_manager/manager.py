"""The node manager without its wire: deployments and their slots, their wanted state on disk, lanes, updates.

What is wanted outlives everything: a manager that starts adopts what runs, then brings the rest about. It needs no
registry for what it has already been told and pulled.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, RLock
from typing import Any, Protocol

import structlog

from node_manager.drivers import sandbox
from node_manager.drivers.base import Driver
from node_manager.drivers.process import ProcessDriver
from node_manager.files import read_json, write_json
from node_manager.homes import Asked, GroupMaps, Homes
from node_manager.images.images import Image, Images, Source
from node_manager.instances import runtime_base
from node_manager.instances.instances import Config, Instance, Instances
from node_manager.instances.pool import Pool
from node_manager.servers.binaries import Role
from node_manager.servers.embedded import Servers
from node_manager.settings import Settings
from node_manager.slots.loading import Node, Wanted
from node_manager.slots.slot import Slot
from node_manager.trials.canaries import Canary
from node_manager.trials.comparing import CANARY, UPDATE, Comparisons, Found
from node_manager.trials.keyed_canaries import KeyedCanary
from udo_protocol.errors import Conflict, NotFound, SlotBroken, UdoError, Unavailable, UsageError, WaitTimeout
from udo_protocol.formats.schema import from_ipc, require_fit
from udo_protocol.queue import keys
from udo_protocol.queue import slot as log
from udo_protocol.state import checkpoints, dead_letters, untrusted

_log = structlog.get_logger()


def _process(settings: Settings) -> Driver:
    if settings.sandbox == "none":
        return ProcessDriver()
    settings.prepare()
    box, remark = sandbox.find(settings.sockets.absolute(), runtime_base.build(settings.runtime_base.absolute()))
    _log.info("sandbox found", remark=remark) if box else _log.warning("operators are not isolated", remark=remark)
    return ProcessDriver(box, remark)


def _docker(settings: Settings) -> Driver:
    from node_manager.drivers.docker import DockerDriver  # the SDK takes 0.2 s to import

    return DockerDriver(settings)


DRIVERS: Mapping[str, Callable[[Settings], Driver]] = {"process": _process, "docker": _docker}
# Slots of pinned versions are numbered from here on, those of the deployment itself from 0.
PINNED_FROM = 1000
# Promotion is two round trips; a shadow that had to be loaded anew comes on top.
_PROMOTE_TIMEOUT_S = 30.0


class Catalogue(Source, GroupMaps, Protocol):
    """What a node asks the registry for."""

    def epoch(self, name: str, session: str, epoch: int) -> Mapping[str, Any]:
        """`{version, digest}` bound to (session, epoch) by whoever asked first."""


@dataclass
class Deployment:
    """An operator made callable on this node."""

    name: str
    operator: str
    version: str
    digest: str
    config: dict[str, Any] = field(repr=False)
    source: str  # "registry" or "local": who may take it away
    slot: Slot | None = None
    pinned: dict[str, Slot] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of the pinned slots, by digest
    next_number: int = PINNED_FROM  # never used twice: the keys of a retired slot may still be on their way out
    epochs: dict[str, str] = field(default_factory=dict)
    canary: Canary | KeyedCanary | None = None
    beside: dict[int, Slot] = field(default_factory=dict)  # of canaries, also of former ones that lanes are still open to
    adopted: set[int] = field(default_factory=set)  # of these, left by a former manager: their canary may go on

    def record(self) -> dict[str, Any]:
        """As it is kept on disk."""
        names = ("name", "operator", "version", "digest", "config", "source", "numbers", "next_number")
        return {**{k: getattr(self, k) for k in names}, "beside": list(self.beside)}


@dataclass(frozen=True)
class Step:
    """Progress of an update on this node; `at_ms` since it was asked for."""

    phase: str
    detail: str
    at_ms: float
    error_code: str = ""


@dataclass(frozen=True)
class Lane:
    """Answer to OpenLane."""

    image: Image
    slot: Slot
    run_id: str


class Manager:
    """See the module. Methods may be called from any thread."""

    def __init__(self, settings: Settings, catalogue: Catalogue | None = None, driver: Driver | None = None) -> None:
        if driver is None and settings.driver not in DRIVERS:
            raise UsageError(f"no driver {settings.driver!r}; there are: {', '.join(DRIVERS)}")
        self.settings, self.catalogue = settings, catalogue
        self.driver = driver or DRIVERS[settings.driver](settings)
        self.started_at = datetime.now(UTC)
        self.metrics_address = ""
        self.servers = Servers(settings, self._server_restarted)
        self.images = Images(settings.images, catalogue, whole=self.driver.capabilities().runs_images, python_tag=self.driver.python_tag)
        self.instances = Instances(settings, self.driver, self.servers)
        self.pool = Pool(self.instances, settings.warm, settings.stop_grace_s)
        self._node = Node(settings, self.servers, self.instances, self.pool)
        self.comparisons = Comparisons(self._node)
        self.homes = Homes(settings.node, catalogue, lambda: self.servers.connect("state"))
        self._deployments: dict[str, Deployment] = {}
        # What is wanted here and cannot be served: name -> why.
        self.unserved: dict[str, UdoError] = {}
        self._lock = RLock()
        self._lock_fd = -1
        self._stopping = False

    # -- life --------------------------------------------------------------------------------------------------------

    def lock_home(self) -> None:
        """Conflict if another node manager has this home."""
        self.settings.prepare()
        path = self.settings.home / "lock"
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = path.read_text().strip() or "unknown"
            os.close(self._lock_fd)
            raise Conflict(
                f"a node manager (pid {pid}) already runs with home {self.settings.home}; stop it or choose another --home"
            ) from None
        os.ftruncate(self._lock_fd, 0)
        os.write(self._lock_fd, str(os.getpid()).encode())

    def start(self) -> None:
        """Adopt what a former manager left, then bring about what is wanted."""
        self.images.clean()
        self.servers.start()
        running = self.instances.recover()
        self.pool.start([i for i in running if not i.record and i.life.state == "warm"])
        assigned: dict[tuple[str, int], list[Instance]] = defaultdict(list)
        for instance in running:
            if instance.record:
                assigned[instance.record["deployment"], instance.record["slot"]].append(instance)
            elif instance.life.state != "warm":
                self.instances.stop(instance, 0)
        for record in (read_json(self.settings.wanted) or {}).get("deployments", []):
            beside = record.pop("beside", [])
            deployment = Deployment(**record)
            self._deployments[deployment.name] = deployment
            deployment.slot = Slot(self._node, deployment.name, 0)
            self._adopt(deployment.slot, assigned.pop((deployment.name, 0), []), Config.parse(deployment.config))
            for digest, number in list(deployment.numbers.items()):
                left = assigned.pop((deployment.name, number), [])
                if not left:  # it is started again, under a new number, when somebody asks for it
                    del deployment.numbers[digest]
                else:
                    pinned = deployment.pinned[digest] = self._pinned_slot(deployment, digest, number)
                    self._adopt(pinned, left, Config.parse(deployment.config))
            for number in beside:
                slot = deployment.beside[number] = self._canary_slot(deployment, number)
                if left := assigned.pop((deployment.name, number), []):
                    deployment.adopted.add(number)
                    self._adopt(slot, left, Config.parse(deployment.config))
                else:
                    self._follow(deployment, only=slot)
        for strays in assigned.values():
            for instance in strays:
                self.instances.stop(instance, self.settings.stop_grace_s)
        for deployment in list(self._deployments.values()):
            self.converge(deployment.name)

    def _adopt(self, slot: Slot, left: list[Instance], config: Config) -> None:
        """Of what was left of a slot the owner goes on; shadows of an update that nobody follows any more go."""
        with contextlib.closing(self.servers.connect("queue")) as queue:
            owner_token = log.owner(queue, slot.prefix)
        for instance in left:
            if instance.record.get("comparing"):  # its diff ended with the manager that was asked for it
                self.comparisons.remove(instance, slot.prefix)
                continue
            image = None
            if instance.token == owner_token:
                with contextlib.suppress(UdoError):
                    image = self.images.get(instance.record["operator"], digest=instance.record["digest"])
            if image is None:
                self.instances.stop(instance, self.settings.stop_grace_s)
            else:
                slot.adopt(instance, Wanted(image, config))

    def converge(self, name: str) -> None:
        """Make a deployment's slot serve what is wanted; without the image and the registry it is left as it is."""
        with self._lock:
            deployment = self._deployments.get(name)
        if deployment is None or deployment.slot is None:
            return
        try:
            deployment.slot.serve(self._wanted(deployment, deployment.version, deployment.digest, deployment.config))
        except UdoError as e:
            _log.warning("wanted version is not available", deployment=name, version=deployment.version, error=str(e))

    def stop(self) -> None:
        """Stop all instances and servers; what is wanted stays on disk for the next start."""
        for deployment in self.deployments():
            self._end_keyed_canary(deployment)
        self.comparisons.end()
        with self._lock:
            slots = self._slots()
            self._deployments.clear()
            self._stopping = True
        for done in [slot.stop(drop=False) for slot in slots]:
            with contextlib.suppress(FutureTimeout):
                done.result(self.settings.stop_grace_s + 15)
        self.pool.stop()
        self.driver.close()
        self.servers.stop()
        self.settings.socket.unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def _server_restarted(self, role: Role) -> None:
        for slot in self.slots():
            slot.server_restarted(role)

    # -- deployments -------------------------------------------------------------------------------------------------

    def _slots(self) -> list[Slot]:
        return [s for d in self._deployments.values() for s in (d.slot, *d.pinned.values(), *d.beside.values()) if s is not None]

    def slots(self) -> list[Slot]:
        """All slots of this node."""
        with self._lock:
            return self._slots()

    def deployments(self) -> list[Deployment]:
        """All deployments of this node."""
        with self._lock:
            return list(self._deployments.values())

    def find(self, name: str) -> Deployment:
        """The deployment; NotFound lists the near ones."""
        with self._lock:
            if name in self._deployments:
                return self._deployments[name]
            near = difflib.get_close_matches(name, self._deployments) or sorted(self._deployments)[:5]
        there = f"; did you mean: {', '.join(near)}?" if near else "; this node has none yet"
        raise NotFound(f"no deployment {name!r} on node {self.settings.node}{there} Deploy it with: udo deploy {name}")

    def condition(self, name: str) -> tuple[str, str] | None:
        """How the deployment's own slot fares now (Slot.condition); None if there is no such deployment."""
        with self._lock:
            deployment = self._deployments.get(name)
        return deployment.slot.condition() if deployment and deployment.slot else None

    def _save(self) -> None:
        write_json(self.settings.wanted, {"deployments": [d.record() for d in self._deployments.values()]})

    def _wanted(self, deployment: Deployment, version: str, digest: str, config: Mapping[str, Any]) -> Wanted:
        return Wanted(self.images.get(deployment.operator, version, digest), Config.parse(config))

    def deploy(
        self, name: str, operator: str, version: str, digest: str, config: dict[str, Any], wait_s: float, source: str = "local"
    ) -> str:
        """Make it callable and wait for it; the same again changes nothing. Answers the instance."""
        image = self.images.get(operator, version, digest)
        Config.parse(config)
        with self._lock:
            if self._stopping:  # a slot made now would outlive it
                raise Unavailable(f"node {self.settings.node} is stopping")
            deployment = self._deployments.get(name)
            if deployment is None:
                deployment = Deployment(name, operator, image.manifest.version, image.digest, config, source)
                deployment.slot = Slot(self._node, name, 0)
                self._deployments[name] = deployment
            elif (deployment.operator, deployment.digest) != (operator, image.digest):
                there = f"{deployment.operator}@{deployment.version} ({deployment.digest})"
                raise Conflict(f"deployment {name!r} on node {self.settings.node} serves {there}; change it with: udo update {name}")
            elif source == "local":
                self._require_local(deployment, f"udo deploy {name}")
            deployment.source = source
        return self.change(name, image.manifest.version, image.digest, config, wait_s)

    def _require_local(self, deployment: Deployment, command: str) -> None:
        """Conflict if the registry decides about it: what is done here would be undone."""
        if deployment.source == "registry":
            raise Conflict(f"deployment {deployment.name!r} is managed by the registry {self.settings.registry}; use: {command}")

    def change(self, name: str, version: str, digest: str, config: dict[str, Any], wait_s: float) -> str:
        """Serve this from now on, without asking anybody: prepared and promoted in one go. Answers the instance.

        Where another version was served so far, that one is brought up first and serves on unless the new one gets ready beside it,
        state and all: after a restart of this manager, too.
        """
        deployment = self.find(name)
        slot = deployment.slot
        assert slot is not None
        wanted = self._wanted(deployment, version, digest, config)
        if deployment.digest != digest:
            with contextlib.suppress(UdoError):  # it need not load: the new version may be its cure
                slot.wait_serving(wait_s)
        serving = slot.view().owner
        if serving is not None and slot.wanted == wanted:
            self.discard(name)
            self._follow(deployment)
            return serving.name
        if serving is not None or deployment.digest != digest:
            try:
                self.prepare(name, version, digest, config, check=False)
                return self.promote(name, version, digest, config)
            except UdoError:
                self.discard(name)
                raise
        with self._lock:
            deployment.version, deployment.digest, deployment.config = version, digest, config
            self._save()
        slot.serve(wanted)
        instance = slot.wait_serving(wait_s)
        return instance.name if instance else ""

    def undeploy(self, name: str, source: str = "local", *, drop_state: bool = True) -> None:
        """Stop its instances and remove all its slots left behind.

        Without `drop_state`, Conflict if keyed sessions or dead letters are among it.
        """
        deployment = self.find(name)
        if source == "local":
            self._require_local(deployment, f"udo undeploy {name}")
        if not drop_state and deployment.slot is not None:
            slots = [s for s in (deployment.slot, *deployment.pinned.values()) if s is not None]
            try:
                with contextlib.closing(self.servers.connect("state")) as state:
                    (held,) = untrusted.read(state, ("HLEN", f"{deployment.slot.prefix}sessions"))
                    letters = sum(dead_letters.count(state, s.prefix) for s in slots)
            except SlotBroken as e:
                raise Conflict(f"what deployment {name!r} holds cannot be counted and would be lost: {e}. Use --drop-state") from None
            if letters:
                raise Conflict(
                    f"deployment {name!r} holds {letters} dead letters on node {self.settings.node} (udo dead ls {name}), which would be "
                    "lost. Send them again or drop them, or use --drop-state"
                )
            if held:
                raise Conflict(
                    f"deployment {name!r} holds the state of {held} sessions on node {self.settings.node} (udo state ls {name}), which "
                    "would be lost. Export what is needed, then use --drop-state"
                )
        self._end_keyed_canary(deployment)
        self.comparisons.end(name)
        with self._lock:
            self._deployments.pop(name, None)
            self._save()
        for done in [s.stop(drop=True) for s in (deployment.slot, *deployment.pinned.values(), *deployment.beside.values()) if s]:
            done.result(self.settings.stop_grace_s + 15)

    # -- updates -----------------------------------------------------------------------------------------------------

    def prepare(self, name: str, version: str, digest: str, config: Mapping[str, Any] | None = None, *, check: bool = True) -> Image:
        """Pull and load a version as a shadow; returns once it is ready. The old version serves whatever happens."""
        deployment = self.find(name)
        assert deployment.slot is not None
        wanted = self._wanted(deployment, version, digest, deployment.config if config is None else config)
        self._follow_alone(deployment, wanted)
        self._await(
            deployment.slot.prepare(wanted, check=check),
            wanted.ready_timeout_s,
            f"{wanted.image.manifest.reference} to be ready",
        )
        return wanted.image

    def _follow_alone(self, deployment: Deployment, wanted: Wanted) -> None:
        """An update's shadow is about to follow the owner, until it is promoted or discarded: nothing else may."""
        if wanted.image.manifest.key:
            self.comparisons.hold(deployment.name, UPDATE)
            self._end_keyed_canary(deployment)

    def promote(self, name: str, version: str, digest: str, config: dict[str, Any] | None = None) -> str:
        """Let the prepared version answer from here on; what is wanted is now this. Answers the instance."""
        deployment = self.find(name)
        assert deployment.slot is not None
        instance = self._await(deployment.slot.promote(), _PROMOTE_TIMEOUT_S, f"version {version} of {name} to be promoted")
        self.comparisons.release(name, UPDATE)
        with self._lock:
            deployment.version, deployment.digest = version, digest
            deployment.config = deployment.config if config is None else config
            self._save()
            used = {d.digest for d in self._deployments.values()} | {g for d in self._deployments.values() for g in d.numbers}
            used |= {d.canary.digest for d in self._deployments.values() if d.canary}
            used |= {s.wanted.image.digest for d in self._deployments.values() for s in d.beside.values() if s.wanted}
        for reference in self.images.prune(used):
            self.driver.forget(reference)
        self._follow(deployment)
        return instance.name

    def discard(self, name: str) -> None:
        """Give up a prepared update."""
        self.comparisons.release(name, UPDATE)
        slot = self.find(name).slot
        assert slot is not None
        slot.discard()

    def update(self, name: str, version: str, digest: str, config: dict[str, Any] | None = None) -> Iterator[Step]:
        """Both phases at once, on this node only; the last step is `done` or `failed`."""
        start = time.perf_counter()

        def step(phase: str, detail: str = "", code: str = "") -> Step:
            return Step(phase, detail, (time.perf_counter() - start) * 1000, code)

        yield step("pulling")
        try:
            deployment = self.find(name)
            self._require_local(deployment, f"udo update {name}")
            image = self.images.get(deployment.operator, version, digest)
            yield step("starting", image.manifest.reference)
            self.prepare(name, image.manifest.version, image.digest, config)
            yield step("ready")
            instance = self.promote(name, image.manifest.version, image.digest, config)
            yield step("answering", instance)
        except UdoError as e:
            with contextlib.suppress(UdoError):
                self.discard(name)
            yield step("failed", str(e), e.code)
            return
        yield step("done", image.digest)

    # -- canaries ----------------------------------------------------------------------------------------------------

    def start_canary(self, name: str, update_id: str, version: str, digest: str, config: dict[str, Any], percent: float) -> None:
        """Let a version answer `percent` of the new lanes, in a slot of its own; returns once it does. OperatorError if it cannot.

        A keyed one tries that share of the key groups beside the owner. The same again changes nothing. After a restart it
        goes on with the slot it had.
        """
        deployment = self.find(name)
        wanted = self._wanted(deployment, version, digest, config)
        if deployment.canary is not None and deployment.canary.update_id == update_id:
            return
        if wanted.image.manifest.key:
            self._start_keyed_canary(deployment, update_id, wanted, percent)
            return
        with self._lock:
            deployment.canary = None
            slot = next((s for s in deployment.beside.values() if s.number in deployment.adopted and s.wanted == wanted), None)
            if slot is None:
                number, deployment.next_number = deployment.next_number, deployment.next_number + 1
                slot = deployment.beside[number] = self._canary_slot(deployment, number)
                self._save()
                slot.serve(wanted)
        try:
            slot.wait_serving(wanted.ready_timeout_s)
        except UdoError:
            self._retire_canary(deployment, slot)
            raise
        with self._lock:
            deployment.canary = Canary(update_id, wanted.image.manifest.version, wanted.image.digest, percent, slot)

    def _start_keyed_canary(self, deployment: Deployment, update_id: str, wanted: Wanted, percent: float) -> None:
        assert deployment.slot is not None
        self._end_keyed_canary(deployment)
        self.comparisons.hold(deployment.name, CANARY)
        with self._lock:
            deployment.canary = canary = KeyedCanary(self.comparisons, deployment.slot, wanted, update_id, percent)
        try:
            deployment.slot.wait_serving(wanted.ready_timeout_s)
            canary.start()
        except UdoError:
            self._end_keyed_canary(deployment)
            raise

    def _end_keyed_canary(self, deployment: Deployment) -> None:
        canary = deployment.canary
        if not isinstance(canary, KeyedCanary):
            return
        canary.end()
        self.comparisons.release(deployment.name, CANARY)
        with self._lock:
            if deployment.canary is canary:
                deployment.canary = None

    def end_canary(self, name: str, going_to: str = "") -> None:
        """No new lanes go there; lanes that are open there are answered by what the deployment serves, or is about to (a digest)."""
        with self._lock:
            deployment = self._deployments.get(name)
        if deployment is None:
            return
        self._end_keyed_canary(deployment)
        with self._lock:
            deployment.canary = None
            deployment.adopted.clear()
        self._follow(deployment, going_to)

    def canaries(self) -> list[tuple[str, Canary | KeyedCanary]]:
        """(deployment, canary) of all that run."""
        with self._lock:
            return [(d.name, d.canary) for d in self._deployments.values() if d.canary is not None and d.canary.running]

    def _follow(self, deployment: Deployment, going_to: str = "", only: Slot | None = None) -> None:
        """Slots of former canaries serve what the deployment serves."""
        with self._lock:
            running = deployment.canary.slot if deployment.canary else None
            slots = [s for s in deployment.beside.values() if s is not running and only in (None, s)]
        if not slots:
            return
        with contextlib.suppress(UdoError):  # one that is stopped just now
            wanted = self._wanted(deployment, deployment.version, deployment.digest, deployment.config)
            for slot in slots:
                if slot.wanted is None or (slot.wanted.image.digest != going_to and slot.wanted != wanted):
                    slot.serve(wanted)

    def _canary_slot(self, deployment: Deployment, number: int) -> Slot:
        def idle(slot: Slot) -> None:
            if deployment.canary is None or deployment.canary.slot is not slot:
                self._retire_canary(deployment, slot)

        return Slot(self._node, deployment.name, number, pinned="canary", on_idle=idle)

    def _retire_canary(self, deployment: Deployment, slot: Slot) -> None:
        with self._lock:
            deployment.beside.pop(slot.number, None)
            self._save()
        slot.stop(drop=True)

    def diff(self, name: str, version: str, digest: str, for_s: float, examples: int, stop: Event) -> Iterator[Found]:
        """Let a version answer beside the serving one, on this node, and tell what differs. What serves is not touched."""
        deployment = self.find(name)
        assert deployment.slot is not None
        wanted = self._wanted(deployment, version, digest, deployment.config)
        yield from self.comparisons.run(deployment.slot, wanted, for_s, examples, stop)

    def _await(self, future: Future[Instance], timeout_s: float, what: str) -> Instance:
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            raise WaitTimeout(f"waited {timeout_s:g} s on node {self.settings.node} for {what}") from None

    # -- lanes -------------------------------------------------------------------------------------------------------

    def open_lane(
        self, name: str, *, session: str = "", epoch: int = 0, pin_epoch: bool = False, schema: bytes = b"", wait_s: float = 0.0
    ) -> Lane:
        """The slot a producer is to push to; SchemaError if its events do not fit, OperatorError if it cannot load."""
        base, _, pin = name.partition("@")
        try:
            deployment = self.find(base)
        except NotFound:
            if why := self.unserved.get(base):
                raise type(why)(f"deployment {base!r} is not served on node {self.settings.node}: {why}") from None
            raise
        if pin_epoch:
            pin = self._epoch(deployment, session, epoch)
        slot = self._pinned(deployment, pin) if pin else self._own_or_canary(deployment)
        slot.wait_serving(wait_s)
        wanted = slot.wanted
        if wanted is not None and wanted.image.manifest.key and pin:
            raise UsageError(f"{name!r} keeps state, and a pinned version would have a state of its own; call it as udo({base!r})")
        if wanted is None:
            raise Unavailable(f"deployment {name!r} is still starting on node {self.settings.node}")
        manifest = wanted.image.manifest
        if schema:
            what = f"events for {name} ({manifest.reference})"
            require_fit(
                from_ipc(schema),
                manifest.input_schema,
                what,
                f"Select or cast the columns so that they fit; see: udo inspect {deployment.operator}",
            )
        return Lane(wanted.image, slot, self.servers.run_id("queue"))

    def used(self, lane: Lane, session: str, name: str) -> None:
        """A task is about to open the lane `name` to a keyed session."""
        with contextlib.closing(self.servers.connect("queue")) as queue:
            log.uses(queue, lane.slot.prefix, session, name)

    def run_ordinal(self, lane: Lane, asked: Asked, run: str, call: str, started_ms: int) -> int:
        """The ordinal of a keyed session's run: 1, 2, 3 ... in the order in which they came. StateElsewhere if its home is another node."""
        session = asked.session
        with contextlib.closing(self.servers.connect("state")) as state:
            if self.find(asked.deployment).source == "registry":
                self.homes.require(state, lane.slot.prefix, asked)
            return checkpoints.run_ordinal(state, lane.slot.prefix, session, run, call, started_ms)

    def forget_homes(self, moved: Iterable[Mapping[str, Any]]) -> None:
        """What this node remembers of sessions whose group map has a newer version by now does not count any more."""
        with self._lock:
            prefixes = {d.name: d.slot.prefix for d in self._deployments.values() if d.slot is not None}
        self.homes.moved(prefixes.get, moved)

    def _own_or_canary(self, deployment: Deployment) -> Slot:
        assert deployment.slot is not None
        with self._lock:
            canary = deployment.canary
            return canary.slot if canary is not None and canary.takes() else deployment.slot

    def _epoch(self, deployment: Deployment, session: str, epoch: int) -> str:
        if deployment.source == "registry" and self.catalogue is not None:
            return str(self.catalogue.epoch(deployment.name, session, epoch)["digest"])
        with self._lock:  # known to this node only: the first task of an epoch binds it
            key = f"{session}/{epoch}"
            while len(deployment.epochs) > 1000:
                deployment.epochs.pop(next(iter(deployment.epochs)))
            return deployment.epochs.setdefault(key, deployment.digest)

    def _pinned(self, deployment: Deployment, pin: str) -> Slot:
        """The slot of one version, started on demand."""
        by_digest = pin.startswith("sha256:")
        image = self.images.get(deployment.operator, "" if by_digest else pin, pin if by_digest else "", again=False)
        with self._lock:
            slot = deployment.pinned.get(image.digest)
            if slot is None:
                number = deployment.numbers[image.digest] = deployment.next_number
                deployment.next_number += 1
                slot = deployment.pinned[image.digest] = self._pinned_slot(deployment, image.digest, number)
                self._save()
                slot.serve(Wanted(image, Config.parse(deployment.config)))
            slot.used_at = time.monotonic()
            return slot

    def _pinned_slot(self, deployment: Deployment, digest: str, number: int) -> Slot:
        def retire(slot: Slot) -> None:
            with self._lock:
                if deployment.pinned.get(digest) is slot:
                    del deployment.pinned[digest]
                    deployment.numbers.pop(digest, None)
                    self._save()
            slot.stop(drop=True, letters_to=keys.prefix(deployment.name, 0))

        return Slot(self._node, deployment.name, number, pinned=digest, on_idle=retire)
