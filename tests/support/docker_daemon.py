"""A Docker daemon for the tests, and the runtime base in it; no test may leave a container, network or volume in it.

DOCKER_HOST names a daemon to use; without it one is started for the session, in directories of its own, and ended. The base
is made from Debian packages, since a test machine cannot count on Docker Hub.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker as sdk
import pytest

from tests.conftest import bound, require, wait_until

# Debian's places first: a machine may have another docker before it on PATH.
PATH = os.pathsep.join(("/usr/bin", "/usr/sbin", os.environ.get("PATH", "")))
ROOT = Path(__file__).parents[2]
DEBIAN = "udo-debian-python:bookworm"


# The mounted files that name the user of an operator's container; false: the container may not write there.
USERS = {"/etc/passwd": False, "/etc/group": False}


def seen_by(container: Any) -> dict[str, bool]:
    """The destinations of a container's mounts, and whether it may write there."""
    return {mount["Destination"]: mount["RW"] for mount in container.attrs["Mounts"]}


def tool(name: str, package: str) -> str:
    """The path of a program; without it the test is skipped, or fails where all parts are required."""
    return shutil.which(name, path=PATH) or require(name, f"apt-get install -y --no-install-recommends {package}")


@dataclass(frozen=True)
class Daemon:
    """The docker daemon of this test session and the command line for it."""

    command: str
    host: str
    config: Path

    def __call__(self, *arguments: str) -> str:
        """Run a command that must succeed, and return its standard output."""
        done = self._run(*arguments)
        assert done.returncode == 0, f"docker {arguments}: {done.stdout} {done.stderr}"
        return done.stdout

    def fails(self, *arguments: str) -> str:
        """Run a command that must fail, and return its standard error."""
        done = self._run(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run([self.command, *arguments], capture_output=True, text=True, timeout=bound(60), env=environment, check=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a program use this daemon."""
        return {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.config)}

    def left(self) -> list[str]:
        """The containers of node managers, and all networks and volumes that are not Docker's own."""
        client = sdk.DockerClient(self.host)
        try:
            found = [
                f"container {c.name}" for c in client.containers.list(all=True, filters={"label": "dev.udo.home"}, ignore_removed=True)
            ]
            found += [f"network {n.name}" for n in client.networks.list() if n.name not in ("bridge", "host", "none")]
            return found + [f"volume {v.name}" for v in client.volumes.list()]
        finally:
            client.close()


@pytest.fixture(scope="session")
def docker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon without networks; if it was started here, it is ended with its containerd."""
    client, home = tool("docker", "docker.io"), tmp_path_factory.mktemp("d")
    if host := os.environ.get("DOCKER_HOST"):
        yield Daemon(client, host, home / "config")
        return
    daemon = tool("dockerd", "docker.io")
    host = f"unix://{home}/docker.sock"
    places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
    command = [daemon, *(f"--{option}={home / name}" for option, name in places.items()), f"--host={host}"]
    command += ["--iptables=false", "--ip6tables=false", "--bridge=none", "--insecure-registry=127.0.0.0/8"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PATH": PATH})
    try:
        wait_until(lambda: (home / "docker.sock").exists() or process.poll() is not None, 30, "dockerd's start")
        if process.poll() is not None:
            require("dockerd", f"it does not run here: {(home / 'log').read_text()[-500:]}")
        yield Daemon(client, host, home / "config")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(bound(20))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(bound(10))
        # The daemon leaves the network namespace of a container on the host's network mounted.
        for mount in [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]:
            if Path(mount).is_relative_to(home):
                subprocess.run(["umount", mount], timeout=bound(20), check=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def docker(docker_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """The session's daemon; the test must leave it as it found it."""
    assert request.node.get_closest_marker("docker"), "a test that asks for the daemon while it runs says so: @pytest.mark.docker"
    before = docker_daemon.left()
    yield docker_daemon
    assert [x for x in docker_daemon.left() if x not in before] == []


@pytest.fixture(scope="session")
def runtime_image(docker_daemon: Daemon) -> str:
    """The Python runtime base, made from this checkout's runtime and Debian's Python."""
    saved = ROOT / "build" / "debian" / "base.tar"
    saved.parent.mkdir(parents=True, exist_ok=True)
    with saved.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another part of the suite, with another daemon, may be making it
        if saved.exists():
            docker_daemon("load", "--input", str(saved))
        elif not docker_daemon("images", "--quiet", DEBIAN).strip():
            tool("mmdebstrap", "mmdebstrap")
            script(docker_daemon, "debian-base.sh", DEBIAN)
            if not os.environ.get("UDO_GATE"):  # in the gate only one part has a daemon
                docker_daemon("save", "--output", f"{saved}.new", DEBIAN)
                Path(f"{saved}.new").rename(saved)
    return script(docker_daemon, "runtime.sh", DEBIAN)


def script(daemon: Daemon, name: str, *arguments: str, **variables: str) -> str:
    """Run a script of docker/, and return its output: the name of the image that it made."""
    environment = {**os.environ, **daemon.environment, "PATH": PATH, "PYTHON": sys.executable, **variables}
    done = subprocess.run(
        [str(ROOT / "docker" / name), *arguments], capture_output=True, text=True, timeout=bound(280), env=environment, check=False
    )
    assert done.returncode == 0, f"docker/{name}: {done.stdout} {done.stderr}"
    return done.stdout.strip()
