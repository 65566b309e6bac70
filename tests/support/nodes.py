"""Several nodes of one registry on this host, connected over TLS as if each were on a host of its own."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane
from tests.registry.conftest import Running, image, start
from tests.support.certificates import require_relay, signed
from tests.support.lanes import opened
from udo_protocol.errors import UdoError
from udo_protocol.registry.api import Registry

SCHEMAS = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}}


class Nodes:
    """A registry, and nodes by name; only those in `listening` can have slots of deployments over nodes."""

    def __init__(self, top: Path, *names: str, listening: Collection[str]) -> None:
        self.top, self._listening = top, listening
        self.tls = signed(top / "certs", "here")
        self.start_registry()
        self.client: Registry = self.registry.client()
        self._url = self.registry.url
        self.daemons: dict[str, Daemon] = {}
        self.lanes: list[Lane] = []
        for name in names:
            (top / name).mkdir()
            self.daemons[name] = Daemon(top / name / "h")
            self.start(name, wait=False)
        wait_until(lambda: {n["node"] for n in self.client.nodes() if n["live"]} == set(names), 60, "all nodes to report")

    def start_registry(self) -> None:
        """Start or restart the registry."""
        self.registry: Running = start(self.top / "registry", "--listen", "127.0.0.1:0", tls=self.tls)

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start or restart a node manager."""
        own = ["--node", name, "--registry", self._url, "--token-file", str(self.registry.data / "token")]
        own += ["--tls", str(self.tls.ca.parent), *(["--listen", "127.0.0.1:0"] if name in self._listening else [])]
        self.daemons[name].start(*own, wait=wait)

    def lose(self, name: str, *, disk: bool = False) -> None:
        """kill -9 all processes of a node; its files stay unless `disk`."""
        daemon = self.daemons[name]
        found = daemon.processes()
        for p in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        daemon.kill()
        psutil.wait_procs(found, 10)
        for p in daemon.processes():  # processes that were starting meanwhile
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
                p.wait(bound(10))
        if disk:
            shutil.rmtree(daemon.home)

    def offers(self, node: str, deployment: str) -> bool:
        """Whether this node answers a task with slots of a keyed deployment."""
        with contextlib.suppress(UdoError):
            return bool(opened(self.daemons[node].api, deployment, "looks", session="looks").slots)
        return False

    def address(self, name: str) -> str:
        """The address of a node manager: NAME, the one for its own host; `https://NAME`, the one for other hosts."""
        home = self.daemons[name.removeprefix("https://")].home
        return f"https://127.0.0.1:{(home / 'port').read_text().strip()}" if "://" in name else str(home / "node.sock")

    def lane(self, node: str, deployment: str) -> Lane:
        """Open a lane at a node; it is closed at the end."""
        self.lanes.append(Lane(self.daemons[node].api, deployment, f"lane{len(self.lanes)}", tls=self.tls))
        return self.lanes[-1]

    def push(self, name: str, version: str, source: str, **manifest: Any) -> None:
        """Push a version of an operator."""
        image(name, version, source, **{**SCHEMAS, **manifest}).push(self.client, self.top)

    def deploy(self, name: str, source: str, *, slots: int, replicas: int = 0, **manifest: Any) -> None:
        """Push version 1 of an operator and deploy it over the nodes under its own name; return when all answer."""
        self.push(name, "1", source, **manifest)
        self.client.deploy(name, name, "1", slots=slots, over_nodes=True, replicas=replicas)

        def answering() -> set[str]:
            return {n["node"] for n in self.client.deployment(name)["nodes"] if n["state"] == "answering"}

        wait_until(lambda: answering() == set(self.daemons), 60, "all nodes to answer")

    def groups(self, node: str, deployment: str) -> list[str]:
        """The key groups of each of the deployment's slots on a node."""
        return [s.groups for s in self.daemons[node].api.status().slots if s.deployment == deployment]

    def events(self, node: str, deployment: str) -> int:
        """The number of events that a node's slots have received."""
        return sum(s.events_in for s in self.daemons[node].api.stats(deployment).slots)


@contextmanager
def nodes(top: Path, *names: str, listening: Collection[str]) -> Iterator[Nodes]:
    """Nodes of these names; no process of them may be left at the end."""
    require_relay()
    made = Nodes(top, *names, listening=listening)
    left = []
    try:
        yield made
    finally:
        for lane in made.lanes:
            lane.conn.close()
        for daemon in made.daemons.values():
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.stop()
            left += daemon.processes()
        made.client.close()
        made.registry.stop()
        _, left = psutil.wait_procs(left, bound(5))  # the instances of a slot that has just been removed may still be ending
        for p in left:
            p.kill()
    assert not left
