"""Loads one operator version: takes an instance and a token, sends the assignment, and waits for the instance's report."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from node_manager.config import InstanceConfig
from node_manager.drivers import logfile
from node_manager.drivers.runtime_base import contradicts
from node_manager.images.images import Images, OperatorImage
from node_manager.instances.instances import Instance, Instances
from node_manager.instances.network_access import require_allowed
from node_manager.instances.pool import Pool
from node_manager.instances.record import SlotId
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from node_manager.slots.watching import LOOK_MOST_S
from udo_protocol.assignment import InstanceRole, MirrorRole, OwnerRole, StandbyRole, StateSource
from udo_protocol.clock import ObservedTime
from udo_protocol.cut import cut
from udo_protocol.errors import Conflict, OperatorError, StateLost, UdoError, by_code
from udo_protocol.limits import LOG_END_CHARS, MESSAGE_CHARS, TRACEBACK_CHARS
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import rewinding

# Variables that act only on a process that is started with them. No others are set at its start: they would also reach the program that
# makes the sandbox, outside of it, which must not be told what to load.
_AT_START = re.compile(r"(TZ|LANG|LC_[A-Z]+|PYTHON[A-Z]+|(OMP|OPENBLAS|MKL|NUMEXPR|ARROW)_[A-Z_]+)$")
# While an instance loads, its death and a cancellation are noticed within this time.
_SLICE_MS = 250
_LOG_LINES = 20
_NOTHING_KEPT = (
    "\nNo state from before an update is kept either, by which it could be rolled back: that is kept for a while "
    "(--rollback-window-s of the node manager), unless the state is changed from outside (udo state drop, import) or key groups move"
)
# How long a keyed operator's standby may take to load its state and catch up with the owner.
LOAD_STATE_S = 600.0


@dataclass(frozen=True)
class Wanted:
    """An operator version with its deployment's configuration."""

    image: OperatorImage
    config: InstanceConfig

    @property
    def reference(self) -> str:
        """`name@version`."""
        return self.image.manifest.reference

    @property
    def ready_timeout_s(self) -> float:
        """The time within which an update's standby is ready or has failed, with a margin."""
        manifest = self.image.manifest
        return manifest.limits.open_timeout_s + (LOAD_STATE_S if manifest.key else 0) + 30

    @property
    def answer_timeout_s(self) -> float:
        """The time for one frame; an operator that takes longer counts as hanging."""
        return self.config.answer_timeout_s(self.image.manifest)

    @property
    def silence_s(self) -> float:
        """The longest that a frame may wait for its answer. An operator in a process of its own gets the time of two starts on top: its
        engine restarts a process that ended, and once more if the frame ends that one, too."""
        starts = 2 if self.image.manifest.own_process else 0
        return self.answer_timeout_s + starts * self.image.manifest.limits.open_timeout_s

    @property
    def patience_s(self) -> float:
        """The longest that callers wait for an answer from its slot: its instance may be lost and another one loaded meanwhile."""
        return self.silence_s + self.image.manifest.limits.open_timeout_s


@dataclass(frozen=True)
class NodeParts:
    """The parts that all slots of a node share."""

    settings: NodeSettings
    servers: Servers
    instances: Instances
    pool: Pool
    engines: Pool
    images: Images


@dataclass(eq=False)
class Load:
    """One attempt to load.

    `follow`: a keyed operator's standby is ready when it has the owner's state in memory, or, if it cannot read that, the state
    kept from before the update to it. `serving`: the version of the owner's state.
    """

    wanted: Wanted
    follow: bool = False
    serving: int = 0
    instance: Instance | None = None
    cancelled: Event = field(default_factory=Event)
    mirror: MirrorRole | None = None  # of a comparison


def given_up(wanted: Wanted) -> Conflict:
    """The error of a cancelled load."""
    return Conflict(f"the start of {wanted.reference} was cancelled: something newer is wanted")


def log_end(instance: Instance) -> str:
    """The last lines of its log, for an error message; '' if there are none."""
    lines = [logfile.split_stamp(line)[1] for line in logfile.tail(instance.directory / "log", _LOG_LINES)]
    return "\nlast lines of its log:\n" + cut("\n".join(lines), LOG_END_CHARS) if lines else ""


def run(load: Load, node: NodeParts, deployment: str, number: int) -> None:
    """Load; return when the instance is ready as a standby, else raise the reason. `load.instance` is set as soon as there is one."""
    image, manifest = load.wanted.image, load.wanted.image.manifest
    require_allowed(manifest, node.settings.node, node.settings.allow_network, node.instances.driver.capabilities())
    node.images.mend(image)
    keys = SlotKeys(deployment, number)
    with contextlib.closing(node.servers.connect("state")) as state:
        token = slot.next_token(state, keys)
        role = _role(load, state, keys)
    pool = node.engines if manifest.own_process else node.pool
    whole = node.instances.whole(image)
    cold = whole or (not manifest.own_process and contradicts(image.dependencies))
    env = {name: value for name, value in load.wanted.config.env.items() if whole or _AT_START.match(name)}
    if cold or (env and not manifest.own_process):
        instance = load.instance = node.instances.start(image if cold else None, env)
    else:
        instance = load.instance = pool.take()
    instance.listen(lambda _: None)
    node.instances.assign(
        instance,
        image,
        load.wanted.config,
        SlotId(deployment, number),
        token,
        role,
    )
    left_s, observed = float(manifest.limits.open_timeout_s), ObservedTime(LOOK_MOST_S)
    late = f"(limits.open_timeout_s = {manifest.limits.open_timeout_s:g}): its import or open() hangs"
    follows = False
    with contextlib.closing(node.servers.connect("queue")) as queue:
        while not load.cancelled.is_set():
            dead = instance.exited.is_set()
            report = slot.ready(queue, keys, instance.name, 1 if dead else _SLICE_MS)
            if report is not None:
                node.instances.ready(instance, report)
                if not report.get("ok"):
                    error = report.get("error")
                    raise _load_error(load, role, error if isinstance(error, dict) else {})
                if not report.get("follows"):
                    return
                follows = True
                left_s, late = LOAD_STATE_S, f"(its state was not loaded within {LOAD_STATE_S:g} s)"
            if follows:  # large state takes long
                pool.hold()
            if dead:
                raise OperatorError(f"{manifest.reference} ended before it was ready: {instance.exit}{log_end(instance)}")
            if (left_s := left_s - observed.lap()) < 0:
                raise OperatorError(f"{manifest.reference} was not ready in time {late}{log_end(instance)}")
    raise given_up(load.wanted)


def _role(load: Load, state: Connection, keys: SlotKeys) -> InstanceRole:
    """The instance's role, and with it the state that it loads before its promotion.

    The newer version may die during a rollback. The former version is then loaded again, without following, while the stored state is still
    the newer one's.
    """
    manifest = load.wanted.image.manifest
    if not manifest.key:
        return load.mirror or OwnerRole()
    digest = load.wanted.image.digest
    if not load.follow:
        return StandbyRole(StateSource.KEPT) if rewinding.pending(state, keys, digest) else OwnerRole()
    readable = load.serving in (manifest.state_version, *manifest.migrates_from)
    if not readable and rewinding.possible(state, keys, digest):
        return load.mirror or StandbyRole(StateSource.KEPT)
    if not readable and (why := rewinding.gone(state, keys)):
        there = f"the present state (version {load.serving})"
        raise Conflict(f"{manifest.reference} cannot read {there}, and it is too late to roll back: {why}")
    return load.mirror or StandbyRole(StateSource.OWNER)


def _load_error(load: Load, role: InstanceRole, error: dict[str, Any]) -> UdoError:
    traceback = cut(str(error.get("traceback") or ""), TRACEBACK_CHARS)
    message = cut(str(error.get("message", "")), MESSAGE_CHARS)
    text = f"{load.wanted.reference} did not load: {message}" + (f"\n{traceback}" if traceback else "")
    code, manifest = str(error.get("code", OperatorError.code)), load.wanted.image.manifest
    readable = load.serving in (manifest.state_version, *manifest.migrates_from)
    if code == StateLost.code and role == StandbyRole(StateSource.OWNER) and not readable:
        text += _NOTHING_KEPT
    return by_code(code, text)
