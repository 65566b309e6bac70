"""Instances of this node: started warm or cold, given an operator, recorded on disk so that a restart finds them again."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock
from typing import Any

import structlog

from node_manager.config import InstanceConfig
from node_manager.drivers import logfile, runtime_base
from node_manager.drivers.base import Allowance, Driver, Exit, Handle, Inside, Spec
from node_manager.files import read_json, write_json
from node_manager.images.images import OperatorImage
from node_manager.instances import commands, instance_files
from node_manager.instances.record import InstanceRecord, SlotId
from node_manager.servers.access import PASSWORD_FILE, remove_password, write_password
from node_manager.servers.binaries import Role
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from udo_protocol.assignment import Assignment, InstancePlace, InstanceRole, MirrorRole, Program
from udo_protocol.errors import OperatorError, ServerLost
from udo_protocol.lifecycle import INSTANCE, Lifecycle
from udo_protocol.queue import access
from udo_protocol.queue.keys import SlotKeys, warm
from udo_protocol.queue.slot import ABILITIES
from udo_protocol.state import changelog
from udo_protocol.state.dead_letters import DEAD_LETTER

_log = structlog.get_logger()
# The parts of loading whose times an instance reports.
LOAD_PARTS = ("import", "open")
# Logs of instances that are gone, kept per slot.
_KEPT_LOGS = 5
# A warm instance has loaded no operator yet: the bound only guards against a broken runtime. Its open files are bounded by the
# assignment, since a bound can only be lowered.
_WARM = Allowance(memory_bytes=1 << 30, open_files=0, pids=256)
# Kinds of instances that wait for an assignment: an engine is outside of the sandbox in which its operator will be.
WARM, ENGINE = "warm", "engine"


class Instance:
    """One instance. Its death is reported once to the listener, also to one that is set later."""

    def __init__(self, name: str, directory: Path, kind: str, record: InstanceRecord | None = None) -> None:
        self.name, self.directory, self.kind = name, directory, kind
        self.life = Lifecycle(INSTANCE, "starting", f"instance {name}")
        self.handle: Handle | None = None
        self.exit: Exit | None = None
        self.exited = Event()
        self.record = record  # None while it is warm
        self.started_at = time.monotonic()
        self._listener: Callable[[Instance], object] | None = None
        self._lock = Lock()

    @property
    def assigned(self) -> InstanceRecord:
        """The record of an instance that has an operator."""
        assert self.record is not None, f"instance {self.name} is warm"
        return self.record

    @property
    def token(self) -> int:
        """The token it was assigned; 0 while it is warm."""
        return self.record.token if self.record else 0

    def listen(self, listener: Callable[[Instance], object]) -> None:
        """Replace the listener; called at once if the instance is dead already."""
        with self._lock:
            self._listener = listener
            dead = self.exited.is_set()
        if dead:
            listener(self)

    def died(self, how: Exit) -> None:
        """Callback of the driver: the instance has ended."""
        with self._lock:
            self.exit = how
            self.exited.set()
            listener = self._listener
        if listener:
            listener(self)


class Instances:
    """Starts, assigns, records and removes instances."""

    def __init__(self, settings: NodeSettings, driver: Driver, servers: Servers) -> None:
        self._settings, self.driver, self._servers = settings, driver, servers
        self._base = runtime_base.build(settings.runtime_base)

    def start(self, cold: OperatorImage | None = None, env: Mapping[str, str] | None = None, *, engine: bool = False) -> Instance:
        """Start an instance: warm, also as the `engine` of an operator in a process of its own, or cold, for an image whose dependencies a
        warm one could not load. `env`: variables of its deployment, some of which act only on a process that is started with them."""
        if cold is not None and cold.manifest.own_process:
            raise OperatorError(
                f"{cold.manifest.reference} asks for a process of its own (isolation in operator.toml), which this node gives only to "
                f"operators packaged for its Python, {self.driver.python_tag}: push a version for it (udo push --python)"
            )
        name = secrets.token_hex(4)
        directory = self._settings.instances.absolute() / name
        directory.mkdir(mode=0o700)
        instance = Instance(name, directory, "cold" if cold else ENGINE if engine else WARM)
        inside = self._inside(instance, engine=engine)
        environment = {
            **commands.surroundings(inside),
            **(env or {}),
            "UDO_INSTANCE": name,
            "UDO_QUEUE_SOCKET": self._socket(inside, "queue"),
            "UDO_PASSWORD_FILE": PASSWORD_FILE,
            **({} if cold else {"UDO_WARM": "1"}),
        }
        argv: tuple[str, ...] = ()
        if not inside.runtime:
            argv = (sys.executable, *commands.ALONE, str(runtime_base.bootstrap()))
            environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **environment}
        try:
            whole = cold is not None and self.whole(cold)
            if not whole:
                path = self._place(instance, cold, inside) if cold else []
                environment["UDO_PYTHONPATH"] = os.pathsep.join([*path, inside.runtime or str(self._base.absolute())])
            allowance = Allowance.of(cold.manifest) if cold and whole else _WARM
            spec = Spec(name, argv, environment, directory, allowance, cold.reference if cold and whole else "", engine)
            write_password(directory / PASSWORD_FILE, self._servers.admit("queue", name, access.warm(name)))
            instance.handle = self.driver.start(spec, instance.died)
            self.save(instance)
        except BaseException:
            if instance.handle is not None:
                self.driver.stop(instance.handle, 0)
            self._servers.dismiss(name)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return instance

    def whole(self, image: OperatorImage) -> bool:
        """Whether it runs as a whole image, not on this node's runtime base: it has no code layer, or is for another Python."""
        fits = image.manifest.python_tag in ("", self.driver.python_tag) or image.manifest.python_tag.startswith("py3")
        return not image.has_code or not fits

    def _inside(self, instance: Instance, *, engine: bool) -> Inside:
        return self.driver.inside(instance.directory, self._settings.sockets.absolute(), engine=engine)

    def _socket(self, inside: Inside, role: Role) -> str:
        return f"{inside.sockets}/{self._servers.socket(role).name}"

    def _place(self, instance: Instance, image: OperatorImage, inside: Inside) -> list[str]:
        """Put code and dependencies where the instance sees them; return those paths."""
        if inside.images:
            return [str(image.code), str(image.dependencies)]
        instance_files.place(image, instance.directory)
        return [f"{inside.directory}/{path.name}" for path in (image.code, image.dependencies)]

    def assign(
        self,
        instance: Instance,
        image: OperatorImage,
        config: InstanceConfig,
        at: SlotId,
        token: int,
        role: InstanceRole,
    ) -> None:
        """Give the instance its operator, in that role; it reports on the slot's `ready` list."""
        assert instance.handle is not None
        mirror = role if isinstance(role, MirrorRole) else None
        manifest, allowance = image.manifest, Allowance.of(image.manifest)
        inside = self._inside(instance, engine=manifest.own_process)
        own = commands.own(instance.directory) if manifest.own_process else instance.directory
        for name, content in config.files.items():
            instance_files.put(own, name, base64.b64decode(content))
        command = None
        if manifest.own_process:  # after the files, none of which may be written through a link to the image
            nice = mirror.nice if mirror else 0
            command = commands.placed(image, own, inside, self.driver, self._settings.sockets, self._base.absolute(), nice)
            command["answer_timeout_s"] = config.answer_timeout_s(manifest)
        # A cold start has these paths already, in front of the runtime; an engine's operator is another process.
        path = self._place(instance, image, inside) if instance.kind == WARM else []
        self.driver.limit(instance.handle, allowance)
        keys = SlotKeys(at.deployment, at.number)
        place = InstancePlace(instance.name, token, keys, self._socket(inside, "queue"), self._socket(inside, "state"))
        program = Program(manifest.entry, tuple(path), command, manifest.keyed, manifest.state, config.env, config.secrets)
        told = Assignment(
            place,
            manifest.name,
            manifest.version,
            image.digest,
            program,
            manifest.input_schema,
            manifest.output_schema,
            role,
            config.policy,
            config.limits,
            allowance.open_files,
        )
        instance.record = InstanceRecord.of(told, at, allowance)
        self.move(instance, "loading")
        if manifest.key:
            self._servers.widen("state", instance.name, (access.reading if mirror else access.state)(keys))
        elif config.policy == DEAD_LETTER and not mirror:
            self._servers.widen("state", instance.name, access.letters(keys))
        rules = (access.comparing if mirror else access.queue)(keys, instance.name)
        with contextlib.closing(self._servers.connect("queue")) as conn:
            self._servers.users.widen("queue", conn.call, instance.name, rules)
            # Holds secrets: expires soon even if it is not fetched.
            key = warm(instance.name)
            conn.transaction([("RPUSH", key, json.dumps(told.document())), ("PEXPIRE", key, int(manifest.limits.open_timeout_s * 1000))])

    def ready(self, instance: Instance, report: Mapping[str, Any]) -> None:
        """Note the report of an instance, which has therefore read its password. The first report says how long its operator took to load,
        and what the instance can do; a standby reports once more."""
        if instance.record is not None and instance.record.load_ms is None:
            times, told = {part: report.get(f"{part}_ms") for part in LOAD_PARTS}, report.get("abilities")
            instance.record.load_ms = {part: ms for part, ms in times.items() if isinstance(ms, int | float)}
            instance.record.abilities = tuple(known for known in ABILITIES if isinstance(told, list) and known in told)
        remove_password(instance.directory / PASSWORD_FILE)

    def move(self, instance: Instance, state: str) -> None:
        """Change its state, in memory and on disk."""
        instance.life.move(state)
        self.save(instance)

    def save(self, instance: Instance) -> None:
        """Write the record that a restarted manager reads."""
        assert instance.handle is not None
        told = instance.record.document() if instance.record else {}
        record = {"handle": instance.handle.to_json(), "kind": instance.kind, "state": instance.life.state, **told}
        write_json(self._settings.handles / f"{instance.name}.json", record)

    def stop(self, instance: Instance, grace_s: float) -> None:
        """Stop the instance, wait for its end, remove it."""
        if instance.handle is not None:
            self.driver.stop(instance.handle, grace_s)
        self.remove(instance)

    def remove(self, instance: Instance) -> None:
        """Remove the record and directory of a dead instance; its log is kept among the slot's last few."""
        self._servers.dismiss(instance.name)
        (self._settings.handles / f"{instance.name}.json").unlink(missing_ok=True)
        if (record := instance.record) is not None:
            kept = self._settings.logs / f"{record.deployment}-{record.slot}"
            kept.mkdir(exist_ok=True, mode=0o700)
            lines = logfile.tail(instance.directory / "log", 0)
            if lines:
                name = f"{time.time_ns():020d}-{instance.name}-{record.version}.log"
                (kept / name).write_text("\n".join(lines) + "\n", "utf-8")
            for old in sorted(kept.iterdir())[:-_KEPT_LOGS]:
                old.unlink(missing_ok=True)
            self._leave_changelog(instance.name, record)
        shutil.rmtree(instance.directory, ignore_errors=True)

    def _leave_changelog(self, instance: str, record: InstanceRecord) -> None:
        """Stop keeping the changelog for a standby or a mirror, however it ended."""
        if record.follow or record.comparing:
            with contextlib.suppress(ServerLost), contextlib.closing(self._servers.connect("state")) as state:
                state.call(*changelog.leaving(SlotKeys(record.deployment, record.slot), instance))

    def recover(self) -> list[Instance]:
        """The instances of a former manager that still run; the remains of the others are removed."""
        found = []
        for path in sorted(self._settings.handles.glob("*.json")):
            record = read_json(path) or {}
            handle = Handle(**record["handle"]) if "handle" in record else None
            if handle is None or handle.driver != self.driver.name:
                path.unlink(missing_ok=True)
                continue
            own = InstanceRecord.parse(record) if "deployment" in record else None
            instance = Instance(handle.instance, Path(handle.directory), record["kind"], own)
            instance.handle = handle
            instance.life.state = record["state"]
            allowance = own.allowance if own else _WARM
            if self.driver.recover(handle, allowance, instance.died):
                found.append(instance)
            else:
                self.remove(instance)
        known = {i.name for i in found}
        self.driver.sweep(known)
        for directory in self._settings.instances.iterdir():
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)
        self._servers.dismiss_others(known)
        if found:
            _log.info("instances adopted", instances=sorted(known))
        return found
