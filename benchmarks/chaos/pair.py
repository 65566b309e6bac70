"""Two nodes of one registry, each on a host of its own (a network namespace) that may lose power and its disk."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from benchmarks.chaos.changes import Changes
from benchmarks.chaos.kinds import HISTORY
from benchmarks.harness.bringup import Platform, wait_until
from benchmarks.harness.rules import InvalidRun
from tests.support.netns import Host, Missing, Network, network
from udo_cli.home import Home
from udo_cli.platform.authority import Authority
from udo_protocol.errors import UdoError
from udo_protocol.node.api import connect_node

# The operator, deployed on each node with one slot under its own name, with several under the second one; and over both nodes.
OPERATOR, WIDE, OVER, SLOTS = "history", "history-wide", "history-over", 3
# All read both forms of state: nodes change their versions one after the other, and each must read what the other has put into the store.
VERSIONS = ("4", "3", "5", "6")
_START_S, _STOP_S = 90.0, 40.0


class _Versions:
    """Changes of the version on both nodes, by way of the registry (benchmarks/chaos/changes.py)."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def version(self, deployment: str) -> str:
        with self._platform.registry() as registry:
            return str(registry.deployment(deployment)["version"])

    def kept(self, _: str) -> None:
        """A rollback by kept state would lead to a version that cannot read what is in the store."""

    def change(self, deployment: str, version: str, *, back: bool) -> str:
        with self._platform.registry() as registry:
            last = list(registry.update(deployment, version))[-1]
        return "" if last["phase"] == "done" else str(last["detail"])


class Pair:
    """Node managers on two hosts with OPERATOR deployed three times. Methods may be called from any thread."""

    changes: Changes

    def __init__(self, top: Path, net: Network) -> None:
        self._top, self._net, self._url = top, net, ""
        self._registry: subprocess.Popen[Any] | None = None
        self._managers: dict[str, subprocess.Popen[Any]] = {}
        self._up: set[str] = set()
        self._lock, self._losing = Lock(), Lock()
        self._threads: list[Thread] = []
        self.tls = Authority.of(top / "certs").sign_host([net.address, *(host.address for host in net.hosts.values())])

    def begin(self) -> None:
        """Start everything; even if that fails, `stop` ends all that has started."""
        top, net = self._top, self._net
        with (top / "log").open("ab") as log:
            command: list[str | Path] = [sys.executable, "-m", "registry", "--data", str(top / "registry"), "--listen", f"{net.address}:0"]
            command += ["--tls", str(self.tls.ca.parent)]
            self._registry = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        address = top / "registry" / "address"
        wait_until(address.exists, _START_S, "the registry to listen")
        self._url = address.read_text("utf-8").strip()
        platform = Platform(Home(top), self._url, "", self.tls)
        self.changes = Changes(_Versions(platform))
        for version in VERSIONS:
            platform.push(OPERATOR, version, **HISTORY.versions[version])
        with platform.registry() as registry:
            registry.deploy(OPERATOR, OPERATOR, VERSIONS[0])
            registry.deploy(WIDE, OPERATOR, VERSIONS[0], slots=SLOTS)
            for host in net.hosts.values():
                self._start(host)
            registry.deploy(OVER, OPERATOR, VERSIONS[0], slots=SLOTS, over_nodes=True)
        for name in net.hosts:
            wait_until(lambda n=name: bool(self._serving(n, OVER)), _START_S, f"{OVER} to answer on node {name}")  # type: ignore[misc]

    def _start(self, host: Host) -> None:
        """Start the host's node manager and wait until the operator answers there."""
        home = self._top / host.name
        with (self._top / "log").open("ab") as log:
            command: list[str | Path] = [sys.executable, "-m", "node_manager", "--home", home, "--node", host.name, "--registry", self._url]
            # In a sandbox instances would have a network of their own, and outlive their host.
            command += ["--token-file", self._top / "registry" / "token", "--sandbox", "none", "--tls", self.tls.ca.parent]
            command += ["--listen", f"{host.address}:0"]
            # Like the registry, in a session of its own: Ctrl-C in the terminal must not end it under queries that still run.
            self._managers[host.name] = host.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

        def answers() -> bool:
            return all(self._serving(host.name, name) == slots for name, slots in ((OPERATOR, 1), (WIDE, SLOTS)))

        wait_until(answers, _START_S, f"the operator to answer on node {host.name}; log: {self._top}/log")
        with self._lock:
            self._up.add(host.name)

    def _serving(self, node: str, deployment: str) -> int:
        """The number of the deployment's slots on a node that answer."""
        with contextlib.suppress(UdoError):
            found = connect_node(self.socket(node)).status().slots
            return sum(s.state == "owner" for s in found if s.deployment == deployment)
        return 0

    def socket(self, name: str) -> Path:
        """The socket of a node's manager."""
        return self._top / name / "node.sock"

    @property
    def store(self) -> Path:
        """A directory that both hosts reach."""
        return self._top / "store"

    def pick(self, rng: random.Random) -> str:
        """Pick one of the nodes that are up; there is always one."""
        with self._lock:
            return rng.choice(sorted(self._up))

    def lose(self, name: str) -> bool:
        """In the background, cut a host's power and delete its disk, then start it again empty. False while a host is already away."""
        if not self._losing.acquire(blocking=False):
            return False
        thread = Thread(target=self._lose, args=(self._net.hosts[name],), daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def _lose(self, host: Host) -> None:
        try:
            with self._lock:
                self._up.discard(host.name)
            host.kill()
            self._managers[host.name].wait(_STOP_S)
            connect_node(self.socket(host.name)).close()
            shutil.rmtree(self._top / host.name, ignore_errors=True)
            self._start(host)
        finally:
            self._losing.release()

    def stop(self) -> None:
        """Stop both nodes and the registry."""
        for thread in self._threads:
            thread.join(_START_S)
        for process in (*self._managers.values(), *((self._registry,) if self._registry else ())):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        for name in self._net.hosts:
            connect_node(self.socket(name)).close()


@contextmanager
def pair() -> Iterator[Pair]:
    """Run two nodes, and remove them at the end, whatever happened. InvalidRun where there can be no network namespaces."""
    with tempfile.TemporaryDirectory(prefix="udo-") as top, contextlib.ExitStack() as stack:
        try:
            net = stack.enter_context(network("a", "b"))
        except Missing as e:
            raise InvalidRun(str(e)) from e
        made = Pair(Path(top), net)
        try:
            made.begin()
            yield made
        finally:
            made.stop()
