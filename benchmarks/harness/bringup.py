"""Starts the platform, or single servers, for a benchmark in a directory of its own, and leaves nothing running."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.rules import InvalidRun
from udo_cli.home import Home
from udo_cli.options.daemons import UpOptions
from udo_cli.packing import bases
from udo_cli.packing.build import Target, build, load
from udo_cli.packing.upload import upload
from udo_cli.platform import local
from udo_cli.platform.authority import Authority
from udo_protocol.certificates import Tls
from udo_protocol.errors import UdoError
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATORS = Path(__file__).parents[1] / "operators"
START_TIMEOUT_S = 60.0
_LOOK_S = 0.02


def say(text: str) -> None:
    """Print progress to standard error; standard output is for figures."""
    print(text, file=sys.stderr, flush=True)


def fresh() -> int:
    """Return a random first seed, so that suites with random inputs try new ones in each run; they print it."""
    return secrets.randbelow(1_000_000_000)


def wait_until(met: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return as soon as `met`; InvalidRun naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not met():
        if time.monotonic() > deadline:
            raise InvalidRun(f"waited {timeout_s:g} s for {what}")
        time.sleep(_LOOK_S)


def import_ms(node: NodeClient, deployment: str) -> float:
    """Return how many milliseconds the serving instance took to import the operator's code."""
    with urllib.request.urlopen(node.status().metrics_address, timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    return next(
        s.value * 1000
        for f in families
        for s in f.samples
        if f.name == "udo_load_seconds" and (s.labels["deployment"], s.labels["part"]) == (deployment, "import")
    )


def _silent(_: str) -> None:
    """Ignore the messages of packing."""


@dataclass(frozen=True)
class Platform:
    """A registry and a node manager used by this run alone."""

    home: Home
    registry_url: str
    node_socket: str
    tls: Tls | None = None

    def registry(self) -> Registry:
        """Return a client of the registry with write access."""
        return Registry(self.registry_url, token=self.home.token_file.read_text("utf-8").strip(), user="benchmarks", tls=self.tls)

    def node(self) -> NodeClient:
        """Return a client of the node manager."""
        return connect_node(self.node_socket)

    def push(self, operator: str, version: str, directory: Path | None = None, **otherwise: Any) -> None:
        """Pack and upload a benchmark operator (or the one in `directory`) as this version, with the fields `otherwise` in its manifest."""
        target = Target.of(None, None)
        directory = directory or OPERATORS / operator
        folder = load(directory, version, target)
        manifest = folder.manifest.model_copy(update=otherwise)
        work = self.home.path / "work"
        work.mkdir(exist_ok=True)
        with self.registry() as registry:
            base = bases.choose(registry, manifest.runtime, target, None, _silent)
            upload(
                registry, manifest, build(replace(folder, manifest=manifest), work, self.home.dependencies, _silent, base).image, _silent
            )

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
        """Return all processes under this home by part: instance, warm, sandbox, queue, state, watchdog, node_manager, registry."""
        status = self.node().status()
        # In a sandbox the instance is a child of the process in the node's status.
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
        """The main processes of this node's containers, which paths do not identify: inside a container they are different."""
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
    """Run the whole platform, started as `udo up` starts it, with `tls` also for other hosts; stop it at the end, whatever happened.

    decide_s: seconds between two decisions of its controllers, and the window of the rates that they use; 0: the default.
    """
    # Unix socket paths are short: 107 bytes.
    path = Path(tempfile.mkdtemp(prefix="udo-bench-"))
    home = Home(path)
    try:
        files = Authority.of(path / "certs").sign_host(["127.0.0.1"]) if tls else None
        options = UpOptions(driver=driver, sandbox=sandbox, tls=files.ca.parent if files else None, decide_s=decide_s)
        started = local.start(home, options, say)
        yield Platform(home, started.registry, started.node, files)
    except UdoError as e:
        raise InvalidRun(f"{type(e).__name__}: {e}") from e
    finally:
        local.stop(home, say)
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def spark_of(settings: Mapping[str, Any], name: str = "udo benchmarks", master: str = "local[2]") -> Iterator[SparkSession]:
    """Run a Spark session with these settings, quietly; stop it at the end."""
    from udo_interface.java import QUIET, spark_session

    with local.interruptible():
        spark = spark_session(name, master, **QUIET, **settings)
        try:
            local.arm()  # PySpark has put its own handler for Ctrl-C in place of ours, which cleans up
            spark.sparkContext.setLogLevel("ERROR")
            yield spark
        finally:
            spark.stop()


@contextmanager
def server(command: Sequence[str], socket: Path) -> Iterator[str]:
    """Run a contender's server, which is ready when its socket is there; terminate it at the end."""
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
