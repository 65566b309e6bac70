"""Brings up what a benchmark needs, in a directory of its own, and leaves nothing running: the platform, and single servers."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.rules import InvalidRun
from udo_cli import local
from udo_cli.authority import Authority
from udo_cli.home import Home
from udo_cli.packing import bases
from udo_cli.packing.build import Target, build, load_manifest
from udo_cli.packing.upload import upload
from udo_protocol.certificates import Tls
from udo_protocol.errors import UdoError
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.registry.api import Registry

OPERATORS = Path(__file__).parent / "operators"
START_TIMEOUT_S = 60.0
_LOOK_S = 0.02


def say(text: str) -> None:
    """Progress; standard output is for figures."""
    print(text, file=sys.stderr, flush=True)


def fresh() -> int:
    """A first seed that no former run had: what tries inputs tries others each time, and says which."""
    return secrets.randbelow(1_000_000_000)


def wait_until(met: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return as soon as `met`; InvalidRun naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not met():
        if time.monotonic() > deadline:
            raise InvalidRun(f"waited {timeout_s:g} s for {what}")
        time.sleep(_LOOK_S)


def import_ms(node: NodeClient, deployment: str) -> float:
    """How long the import of the operator's code took in the instance that serves."""
    with urllib.request.urlopen(node.status().metrics_address, timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    return next(
        s.value * 1000
        for f in families
        for s in f.samples
        if f.name == "udo_load_seconds" and (s.labels["deployment"], s.labels["part"]) == (deployment, "import")
    )


def _silent(_: str) -> None:
    """Packing says nothing here."""


@dataclass(frozen=True)
class Platform:
    """A registry and a node manager of this run alone."""

    home: Home
    registry_url: str
    node_socket: str
    tls: Tls | None = None

    def registry(self) -> Registry:
        """A client that may write."""
        return Registry(self.registry_url, token=self.home.token_file.read_text("utf-8").strip(), user="benchmarks", tls=self.tls)

    def node(self) -> NodeClient:
        """The node manager."""
        return connect_node(self.node_socket)

    def push(self, operator: str, version: str, directory: Path | None = None, **otherwise: Any) -> None:
        """Pack and upload a benchmark operator (or that in `directory`) under this version, of which the manifest says `otherwise`."""
        target = Target.of(None, None)
        directory = directory or OPERATORS / operator
        manifest = load_manifest(directory, version, target).model_copy(update=otherwise)
        work = self.home.path / "work"
        work.mkdir(exist_ok=True)
        with self.registry() as registry:
            base = bases.choose(registry, manifest.runtime, target, None, _silent)
            upload(registry, manifest, build(directory, manifest, target, work, self.home.dependencies, _silent, base).image, _silent)

    def deploy(self, name: str, operator: str, version: str = "1", **options: Any) -> None:
        """Deploy and wait until an instance answers."""
        with self.registry() as registry:
            registry.deploy(name, operator, version, **options)

            def answering() -> bool:
                nodes = registry.deployment(name)["nodes"]
                if failed := [n for n in nodes if n["state"] == "failed"]:
                    raise InvalidRun(f"deployment {name} failed: {failed[0]['detail']}")
                return any(n["state"] == "answering" for n in nodes)

            wait_until(answering, START_TIMEOUT_S, f"deployment {name}")

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Everything that runs under this home, by part: instance, warm, node_manager, queue, state, registry, other."""
        status = self.node().status()
        # In a sandbox the instance is the child of the process that is known.
        instances = {p.pid for s in status.slots if s.pid for p in (psutil.Process(s.pid), *psutil.Process(s.pid).children(True))}
        servers = {s.pid: s.role for s in status.servers}
        found: dict[str, list[psutil.Process]] = {}
        inside = f"{self.home.path}/"
        for p in psutil.process_iter(["cmdline", "cwd"]):
            command = " ".join(p.info["cmdline"] or ())
            if inside not in command and not f"{p.info['cwd'] or ''}/".startswith(inside):
                continue
            if p.pid in instances:
                part = "instance"
            elif p.pid in servers:
                part = servers[p.pid]
            elif command.startswith("bwrap ") or "/bwrap " in command:
                part = "sandbox"
            elif "bootstrap.py" in command:
                part = "warm"
            else:
                part = next((n for n in ("watchdog", "node_manager", "registry") if n in command), "registry")
            found.setdefault(part, []).append(p)
        for pid in self._containers():
            found.setdefault("instance" if pid in instances else "warm", []).append(psutil.Process(pid))
        return found

    def _containers(self) -> list[int]:
        """First processes of this node's containers: what is in one does not know this machine's paths."""
        if self.node().status().driver != "docker":
            return []
        import docker

        client = docker.from_env()
        try:
            running = client.containers.list(filters={"label": f"dev.udo.home={self.home.node}"})
            return [int(c.attrs["State"]["Pid"]) for c in running]
        finally:
            client.close()


@contextmanager
def platform(driver: str, sandbox: str = "auto", *, tls: bool = False, decide_s: float = 0.0) -> Iterator[Platform]:
    """The whole platform, started as `udo up` starts it, with `tls` for other hosts, too; stopped at the end whatever happened.

    decide_s: between two decisions of its controllers, and of the rates they go by; 0 for the default.
    """
    # Unix socket paths are short: 107 bytes.
    path = Path(tempfile.mkdtemp(prefix="udo-bench-"))
    home = Home(path)
    try:
        files = Authority.of(path / "certs").sign_host(["127.0.0.1"]) if tls else None
        options = local.UpOptions(driver=driver, sandbox=sandbox, tls=files.ca.parent if files else None, decide_s=decide_s)
        started = local.start(home, options, say)
        yield Platform(home, started.registry, started.node, files)
    except UdoError as e:
        raise InvalidRun(f"{type(e).__name__}: {e}") from e
    finally:
        local.stop(home, say)
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def server(command: Sequence[str], socket: Path) -> Iterator[str]:
    """A contender's server, ready when its socket is there; terminated at the end."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: socket.exists() or child.poll() is not None, START_TIMEOUT_S, f"the socket of {' '.join(command[1:3])}")
        if child.poll() is not None:
            raise InvalidRun(f"{' '.join(command)} ended with status {child.returncode} instead of serving")
        yield str(socket)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
