"""Instances as containers: no network, a read-only root, no capabilities, an unprivileged user, bounded memory, CPU and pids.

A container sees three things of its node: the directory of the two servers' sockets and its own private directory, both read-only, and a
`/tmp` of bounded size. It is removed when it has ended; labels name its node and home, by which the containers of a dead manager are found
again. An engine whose operator has a process of its own is a process of this machine; the operator's process is in a container
(docker_operator.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

import docker
import structlog
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import LogConfig, Mount

from node_manager.drivers import docker_operator, users
from node_manager.drivers.base import Allowance, Capabilities, Handle, Inside, Inspection, OnExit, Spec
from node_manager.drivers.container import LOST, WatchedContainer, attach, bounds, confined, over_memory, said, update, used
from node_manager.drivers.docker_images import RUNTIME, DockerImages
from node_manager.drivers.docker_operator import OperatorContainer
from node_manager.drivers.process import ProcessDriver
from node_manager.servers.watchdog import DOCKER, HOME_LABEL
from node_manager.settings import NodeSettings
from udo_protocol import supervised
from udo_protocol.errors import OperatorError, Unavailable

_log = structlog.get_logger()
NODE_LABEL, INSTANCE_LABEL = "dev.udo.node", "dev.udo.instance"
INSIDE = Inside("/udo/instance", "/udo/run", "/tmp", RUNTIME)
# The user and group in containers of a node manager that runs as root; those of any other run as its own user.
UNPRIVILEGED = 65532
# Kept by the daemon for a manager that comes back; the manager keeps a copy of its own.
_LOGS = LogConfig(type=LogConfig.types.JSON, config={"max-size": "4m", "max-file": "2"})
_CALL_TIMEOUT_S = 60
_GONE_S = 10.0


class DockerDriver:
    """See the module. The daemon is found as every Docker tool finds it: DOCKER_HOST, else the local socket."""

    name = "docker"

    def __init__(self, settings: NodeSettings) -> None:
        try:
            self._client = docker.from_env(timeout=_CALL_TIMEOUT_S, max_pool_size=32)
        except DockerException as e:
            raise Unavailable(f"no Docker daemon answers: {e}; start one, or set DOCKER_HOST, or use --driver process") from e
        self._home, self._sockets = str(settings.home.absolute()), str(settings.sockets.absolute())
        self._labels = {NODE_LABEL: settings.node, HOME_LABEL: self._home}
        self._images = DockerImages(self._client, settings)
        self.python_tag = self._images.python_tag
        self._user = os.getuid() or UNPRIVILEGED
        self._group = os.getgid() or UNPRIVILEGED
        self._users = users.files(settings.home.absolute() / "users", self._user, self._group, INSIDE.home)
        self._tasks: dict[str, WatchedContainer] = {}
        self._lock = Lock()
        self._engines = ProcessDriver(remark="")

    def capabilities(self) -> Capabilities:
        return Capabilities(
            memory_limit=True,
            open_files_limit=True,
            process_limit=True,
            disk_limit=True,
            isolates_network=True,
            isolates_sockets=True,
            isolates_reads=True,
            isolates_writes=True,
            isolates_processes=True,
            isolates_keys=True,
            isolates_users=True,
            runs_images=True,
        )

    def inside(self, directory: Path, sockets: Path, *, engine: bool = False) -> Inside:
        return Inside(str(directory), str(sockets), str(directory)) if engine else INSIDE

    def start(self, spec: Spec, on_exit: OnExit) -> Handle:
        # By this file and the labels a later manager finds the container if this one is killed now.
        Path(self._home, DOCKER).write_text(os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET)
        self._hand_over(spec.directory)
        if spec.engine:
            return replace(self._engines.start(spec, on_exit), driver=self.name)
        (spec.directory / "log").touch(mode=0o600)
        image = self._images.pulled(spec.image) if spec.image else self._images.runtime
        container = None
        try:
            container = self._create(spec, image)
            output = attach(container)
            container.start()
            container.reload()
        except (APIError, ImageNotFound, *LOST) as e:
            if container is not None:
                with contextlib.suppress(*LOST):
                    self._drop(container)
            raise OperatorError(f"instance {spec.instance} cannot be started from {image}: {said(e)}") from e
        data = {
            "container": container.id,
            "pid": container.attrs["State"]["Pid"],
        }
        handle = Handle(self.name, spec.instance, str(spec.directory), data)
        self._watch(handle, WatchedContainer(container, spec.directory / "log", spec.allowance, on_exit), output)
        return handle

    def _create(self, spec: Spec, image: str) -> Container:
        program: dict[str, Any] = {"entrypoint": list(spec.argv), "command": []} if spec.argv else {}
        return self._client.containers.create(
            image,
            **program,
            **confined(spec.allowance, f"{self._user}:{self._group}"),
            name=f"udo-{spec.instance}",
            environment=dict(spec.env),
            working_dir=INSIDE.directory,
            labels={**self._labels, INSTANCE_LABEL: spec.instance},
            mounts=[
                *(Mount(inside, path, type="bind", read_only=True) for inside, path in ({} if spec.image else self._users).items()),
                Mount(INSIDE.sockets, self._sockets, type="bind", read_only=True),
                Mount(INSIDE.directory, str(spec.directory), type="bind", read_only=True),
            ],
            log_config=_LOGS,
        )

    def _hand_over(self, directory: Path) -> None:
        """Give the private directory, and the files in it that are the instance's own, to the container's user."""
        if self._user == os.getuid():
            return
        for path in (directory, *directory.iterdir()):
            if path.name not in ("code", "deps"):  # linked from the node's images
                os.chown(path, self._user, self._group)

    def forget(self, image: str) -> None:
        self._images.drop(image)

    def close(self) -> None:
        self._client.close()

    def recover(self, handle: Handle, allowance: Allowance, on_exit: OnExit) -> bool:
        if _is_engine(handle):
            return self._engines.recover(handle, allowance, on_exit)
        container = self._find(handle)
        if container is None or container.status != "running":
            self._drop(container)
            return False
        log = Path(handle.directory) / "log"
        for path in (log, log.with_name("log.1")):  # the daemon has the whole log
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, 0)
        self._watch(handle, WatchedContainer(container, log, allowance, on_exit), attach(container, logs=1))
        return True

    def operator_box(
        self, directory: Path, cwd: Path, allowance: Allowance, *, python: bool = False, bare: bool = False, nice: int = 0
    ) -> list[str]:
        labels = {**self._labels, INSTANCE_LABEL: directory.parent.name}
        image = self._images.runtime if python else self._images.empty() if bare else self._images.commands
        user = f"{self._user}:{self._group}"
        return docker_operator.command(OperatorContainer(image, str(directory), str(cwd), allowance, user, labels, self._users, nice))

    def sweep(self, known: Collection[str]) -> None:
        mine: dict[str, str | list[str] | bool] = {"label": f"{HOME_LABEL}={self._home}"}
        for container in self._client.containers.list(all=True, filters=mine, ignore_removed=True):
            if container.labels.get(INSTANCE_LABEL) not in known:
                _log.info("container of a former manager removed", container=container.short_id)
                self._drop(container)

    def _watch(self, handle: Handle, task: WatchedContainer, output: Any) -> None:
        with self._lock:
            self._tasks = {k: t for k, t in self._tasks.items() if not t.ended.is_set()}
            self._tasks[handle.instance] = task
        supervised.keep("watch", lambda: task.watch(output), Event(), handle.instance)
        supervised.keep("usage", task.sample, task.ended, handle.instance)

    def _find(self, handle: Handle) -> Container | None:
        if task := self._tasks.get(handle.instance):
            return task.container
        try:
            return self._client.containers.get(handle.data["container"])
        except NotFound:
            return None

    def _drop(self, container: Container | None) -> None:
        if container is not None:
            with contextlib.suppress(APIError):  # it is already being removed
                container.remove(force=True, v=True)

    def limit(self, handle: Handle, allowance: Allowance) -> None:
        if _is_engine(handle):
            self._engines.limit(handle, allowance)
            return
        task = self._tasks.get(handle.instance)
        if task is None or task.ended.is_set():
            return
        before, task.allowance = task.allowance, allowance  # the runtime itself lowers its bound on open files
        if bounds(before) == bounds(allowance):
            return
        api: Any = self._client.api  # the SDK's own update_container knows no pids
        try:
            api._result(api._post_json(api._url("/containers/{0}/update", task.container.id), data=update(allowance)))
        except NotFound:
            return
        except APIError as e:
            # The kernel refuses a limit below what is in use already.
            if not (task.ended.is_set() or self._rss_bytes(task) > allowance.memory_bytes > 0):
                raise OperatorError(f"the limits of instance {handle.instance} cannot be set: {said(e)}") from e
            self.kill(handle, over_memory(allowance.memory_bytes))

    def _rss_bytes(self, task: WatchedContainer) -> int:
        """Resident bytes right now; 0 for a container that ends."""
        with contextlib.suppress(DockerException, KeyError, *LOST):
            return used(self._client.api.stats(str(task.container.id), stream=False, one_shot=True))[0]
        return 0

    def stop(self, handle: Handle, grace_s: float) -> None:
        if _is_engine(handle):
            self._engines.stop(handle, grace_s)
            return
        task = self._tasks.get(handle.instance)
        if task is None:
            self._drop(self._find(handle))
            return
        self._signal(task, "SIGTERM")
        if not task.ended.wait(grace_s):
            self._signal(task, "SIGKILL")
            if not task.ended.wait(_GONE_S):
                _log.error("a container does not end", container=task.container.short_id, waited_s=_GONE_S)

    def kill(self, handle: Handle, reason: str) -> None:
        if _is_engine(handle):
            self._engines.kill(handle, reason)
        elif task := self._tasks.get(handle.instance):
            task.reason = task.reason or reason
            self._signal(task, "SIGKILL")

    def _signal(self, task: WatchedContainer, name: str) -> None:
        with contextlib.suppress(APIError):  # it has ended
            task.container.kill(name)

    def inspect(self, handle: Handle) -> Inspection:
        if _is_engine(handle):
            return self._engines.inspect(handle)
        task = self._tasks.get(handle.instance)
        if task is None or task.ended.is_set():
            return Inspection(False, exit=task.exit if task else None)
        return Inspection(True, handle.data["pid"], task.rss_bytes, task.cpu_percent, task.cpu_s)


def _is_engine(handle: Handle) -> bool:
    return "container" not in handle.data
