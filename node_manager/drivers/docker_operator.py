"""An operator's process in a container of its own, as a child of its engine, which runs outside of it.

The engine starts `command(...)` followed by the program; the program's output and exit status are passed on. The container sees one
directory, read-only, with the operator's files and the socket of its engine. It is removed when the program ends, and when the engine or
this process is killed: a process in a session of its own waits for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import LogConfig, Mount
from docker.utils.socket import frames_iter

from node_manager.drivers.base import Allowance
from node_manager.drivers.container import LOST, attach, confined, over_memory, said

# The module path is set first: this script's own folder has a module `docker` too.
_START = """
import json, sys
told = json.loads(sys.argv[1])
sys.path[:] = told["path"]
from node_manager.drivers.docker_operator import main
sys.exit(main(told, sys.argv[2:]))
"""
_PR_SET_PDEATHSIG = 1
_CANNOT_START = 125  # the status of `docker run` when it fails itself
# The variable that names the engine's memory file by a descriptor (docs/operator-protocol.md, Shared memory), which no container has.
_SHARED = "UDO_OPERATOR_SHARED"


@dataclass(frozen=True)
class OperatorContainer:
    """The container of an operator's process. Lists of processes show all of it, so it holds no secrets."""

    image: str
    directory: str
    cwd: str
    allowance: Allowance
    user: str
    labels: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)  # files, by their place inside
    nice: int = 0


def command(container: OperatorContainer) -> list[str]:
    """The command to put in front of the program."""
    daemon = {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}
    return [sys.executable, "-I", "-c", _START, json.dumps({"path": sys.path, "daemon": daemon, "container": asdict(container)})]


def main(told: Mapping[str, Any], program: Sequence[str]) -> int:
    """Run the program, or else the image's own, in its container, to its end; return its exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # this process ends with the engine
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the engine says when to stop
        signal.signal(ignored, signal.SIG_IGN)
    allowance = Allowance(**told["container"].pop("allowance"))
    its, daemon = OperatorContainer(**told["container"], allowance=allowance), told["daemon"]
    # The weight that the kernel gives to a niceness: a niceness set within a container counts only in there.
    yielding: dict[str, Any] = {"cpu_shares": round(1024 / 1.25**its.nice)} if its.nice else {}
    its_own: dict[str, Any] = {"entrypoint": list(program), "command": []} if program else {}
    try:
        container = docker.from_env(environment=daemon).containers.create(
            its.image,
            **its_own,
            # PATH is the image's own.
            environment={name: value for name, value in os.environ.items() if name not in ("PATH", _SHARED)},
            working_dir=its.cwd,
            labels=dict(its.labels),
            mounts=[Mount(inside, path, type="bind", read_only=True) for inside, path in ((its.directory,) * 2, *its.seen.items())],
            log_config=LogConfig(type=LogConfig.types.NONE),
            **confined(allowance, its.user),
            **yielding,
        )
        with _removed_at_the_end(daemon, str(container.id)):
            output = attach(container)
            container.start()
            for _, chunk in frames_iter(output, tty=False):  # type: ignore[no-untyped-call]
                os.write(sys.stdout.fileno(), chunk)
            status = int(container.wait()["StatusCode"])
            container.reload()
            if container.attrs["State"].get("OOMKilled"):
                print(over_memory(allowance.memory_bytes), flush=True)
            return status
    except (APIError, ImageNotFound, DockerException, *LOST) as e:
        print(f"the operator's container cannot be run from {its.image}: {said(e)}", flush=True)
        return _CANNOT_START


@contextlib.contextmanager
def _removed_at_the_end(daemon: dict[str, str], container: str) -> Iterator[None]:
    """Remove the container after the block, or when this process is gone."""
    gone, here = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:  # nobody's child, so that ending all descendants of a process does not end it
            os.setsid()
            os.close(here)
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # else a reader of the output would wait for this process too
                os.dup2(nothing, fd)
            os.read(gone, 1)
            _remove(daemon, container)
        os._exit(0)
    os.wait()
    os.close(gone)
    try:
        yield
    finally:
        _remove(daemon, container)
        os.close(here)


def _remove(daemon: dict[str, str], container: str) -> None:
    with contextlib.suppress(DockerException, *LOST):  # it has been removed
        docker.from_env(environment=daemon).containers.get(container).remove(force=True, v=True)
