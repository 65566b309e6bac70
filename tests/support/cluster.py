"""A registry, and nodes that follow it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane
from tests.registry.conftest import Running, image, start
from udo_protocol.registry.api import Registry

SCHEMAS = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}}


class Cluster:
    """A registry and one node that follows it."""

    def __init__(self, home: Path, data: Path, *arguments: str) -> None:
        self.registry: Running = start(data)
        self.client: Registry = self.registry.client()
        self.data, self.blobs = data, data.parent
        self.lanes: list[Lane] = []
        self.node, self._arguments = Daemon(home), arguments
        self.start_node()

    def start_node(self, url: str = "") -> None:
        """Start or restart the node manager."""
        self.node.start("--registry", url or self.registry.url, "--token-file", str(self.data / "token"), *self._arguments)

    def stop_dead(self) -> None:
        """kill -9 of the node manager, its servers and its instances, as when the host loses power; files stay."""
        self.node.kill()
        for p in self.node.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
                p.wait(bound(10))

    def lane(self) -> Lane:
        """Open a lane of deployment d; it is closed at the end."""
        self.lanes.append(Lane(self.node.api, "d", f"lane{len(self.lanes)}"))
        return self.lanes[-1]

    def push(self, version: str, source: str, **manifest: Any) -> str:
        """Push a version of operator t."""
        return image("t", version, source, **{**SCHEMAS, **manifest}).push(self.client, self.blobs)

    def state(self, name: str = "d") -> tuple[str, str]:
        """(state, version) of the deployment, as the node reported them."""
        nodes = self.client.deployment(name)["nodes"]
        return (nodes[0]["state"], nodes[0]["version"]) if nodes else ("", "")

    def deploy(self, source: str, version: str = "1", **options: Any) -> None:
        """Push and deploy a version, and wait until it answers."""
        self.push(version, source)
        self.client.deploy("d", "t", version, **options)
        wait_until(lambda: self.state() == ("answering", version), 30, f"version {version} to answer")


@contextlib.contextmanager
def running(home: Path, data: Path, *arguments: str) -> Iterator[Cluster]:
    """A cluster whose node manager also gets these arguments; no process of it may be left at the end."""
    c = Cluster(home, data, *arguments)
    try:
        yield c
    finally:
        if c.node.process is not None and c.node.process.poll() is None:
            c.node.stop()
        c.registry.stop()
        for lane in c.lanes:
            lane.conn.close()
        left = c.node.processes()
        for p in left:
            p.kill()
    assert not left
