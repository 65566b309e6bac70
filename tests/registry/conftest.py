"""A real registry process, operators to push into it, and fake nodes that speak the real HTTP API."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import sqlite3
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import bound, wait_until
from tests.support import forked
from tests.support.forked import Forked
from udo_protocol.certificates import Tls
from udo_protocol.errors import Unavailable
from udo_protocol.formats.media_types import OCI_MANIFEST
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import NodeReport

INPUT = {"amount": "double", "card": "int64"}
OUTPUT = {"amount": "double", "flag": "bool"}
_numbers = itertools.count(1)


def fresh(stem: str) -> str:
    """A name that no other test uses."""
    return f"{stem}-{next(_numbers)}"


@dataclass
class Running:
    """A registry process, and its address and token."""

    data: Path
    process: Forked
    clients: list[Registry | httpx.Client] = field(default_factory=list)
    tls: Tls | None = None

    @property
    def url(self) -> str:
        return (self.data / "address").read_text().strip()

    @property
    def token(self) -> str:
        return (self.data / "token").read_text().strip()

    @property
    def log(self) -> str:
        return (self.data / "log").read_text()

    def client(self, token: str | None = "", user: str | None = "ada", timeout_s: float = 10) -> Registry:
        """A client, with the right token unless another one is given; it is closed with the registry."""
        client = Registry(self.url, token=self.token if token == "" else token, user=user, timeout_s=timeout_s, tls=self.tls)
        self.clients.append(client)
        return client

    def http(self) -> httpx.Client:
        """A plain HTTP client with the token; it is closed with the registry."""
        client = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=bound(20))
        self.clients.append(client)
        return client

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        for client in self.clients:
            client.close()
        self.process.terminate()  # no effect on a process that has ended
        return self.process.wait(bound(10))


def start(data: Path, *options: str, tls: Tls | None = None) -> Running:
    """Start a registry over `data` and wait until it answers; with these certificates, over HTTPS."""
    data.mkdir(exist_ok=True)
    (data / "address").unlink(missing_ok=True)
    with_tls = ["--tls", str(tls.ca.parent)] if tls else []
    with (data / "log").open("ab") as log:
        process = forked.start("registry", ["--data", str(data), *options, *with_tls], output=(log.fileno(), log.fileno()))
    running = Running(data, process, tls=tls)
    try:
        wait_until(lambda: (data / "address").exists() or process.poll() is not None, 60, "registry start")
        assert process.poll() is None, running.log
    except BaseException:
        process.kill()
        process.wait(bound(10))
        raise
    return running


@pytest.fixture(scope="module")
def database() -> str:
    """The value of --database for the shared registry; a test file may override it. '' means the registry's own SQLite."""
    return ""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[Running]:
    """A registry that the tests of one file share; each test uses names of its own."""
    running = start(tmp_path_factory.mktemp("registry") / "data", *(["--database", database] if database else []))
    yield running
    running.stop()


@pytest.fixture
def start_registry(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start registries that end with the test."""
    started: list[Running] = []

    def begin(*options: str, data: Path = tmp_path / "data") -> Running:
        started.append(start(data, *options))
        return started[-1]

    yield begin
    for running in started:
        running.stop()


def numbered_ahead(registry: Running) -> int:
    """Move the registry's last plan number to what a clock a day ahead would give, and return that number."""
    with contextlib.closing(sqlite3.connect(registry.data / "registry.db")) as database, database:
        database.execute("INSERT OR REPLACE INTO settings VALUES ('plans', ?)", (ahead := int((time.time() + 86_400) * 1000),))
    return ahead


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(code: str) -> bytes:
    """A code layer with one file."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        info = tarfile.TarInfo("opt/udo/code/op.py")
        info.size = len(code.encode())
        tar.addfile(info, io.BytesIO(code.encode()))
    return packed.getvalue()


@dataclass(frozen=True)
class Image:
    """An operator image as bytes: its OCI manifest and the blobs that it references."""

    name: str
    version: str
    manifest: bytes
    blobs: tuple[bytes, ...]

    def push(self, client: Registry, tmp_path: Path) -> str:
        """Upload the blobs, then the manifest; return the digest."""
        for blob in self.blobs:
            path = tmp_path / sha(blob).removeprefix("sha256:")
            path.write_bytes(blob)
            client.push_blob(self.name, sha(blob), path)
        return client.put_manifest(self.name, self.version, self.manifest)


def image(name: str, version: str = "1", code: str = "def f(batch): return batch\n", **changes: Any) -> Image:
    """An operator image; `changes` replace fields of the operator's manifest."""
    table = {"name": name, "version": version, "entry": "op:f", "input": INPUT, "output": OUTPUT, **changes}
    config = json.dumps({"config": {"Labels": {"dev.udo.manifest": json.dumps(table)}}}).encode()
    packed = layer(code)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha(config), "size": len(config)},
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": sha(packed),
                "size": len(packed),
                "annotations": {"dev.udo.layer": "code"},
            }
        ],
    }
    return Image(name, version, json.dumps(manifest).encode(), (config, packed))


@pytest.fixture
def deployed(registry: Running, tmp_path: Path) -> tuple[Registry, str]:
    """A client, and a deployment of version 1 of an operator of the same name; the operator also has a version 2."""
    client, name = registry.client(), fresh("fraud")
    for version in ("1", "2"):
        image(name, version, f"def f(batch): return {version}\n").push(client, tmp_path)
    client.deploy(name, name, "1")
    return client, name


class FakeNode:
    """A node manager without instances: polls the wanted state, reports each step as done. `on_prepare` may raise, to fail, or block."""

    def __init__(self, client: Registry, name: str, on_prepare: Callable[[dict[str, Any]], object] = lambda d: None) -> None:
        self.client, self.name, self.on_prepare = client, name, on_prepare
        self.polls: list[dict[str, Any]] = []
        self.promote = True
        self._done: set[tuple[str, str]] = set()
        self._stopping = threading.Event()
        client.heartbeat(name, address=f"unix:{name}.sock")
        self.polls.append(client.wanted(name, wait_s=0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(Unavailable):
                answer = self.client.wanted(self.name, after=self.polls[-1]["generation"], wait_s=1)
                self.polls.append(answer)
                for d in answer["deployments"]:
                    if d["update"]:
                        self._follow(d, d["update"])

    def _follow(self, d: dict[str, Any], update: dict[str, Any]) -> None:
        step = (update["id"], update["phase"])
        if step in self._done or (update["phase"] == "promote" and not self.promote):
            return
        self._done.add(step)
        said: dict[str, Any] = {"version": update["version"], "digest": update["digest"], "update_id": update["id"]}
        if update["phase"] == "promote":
            return self.client.report(self.name, NodeReport(deployment=d["name"], state="answering", phase="answering", **said))
        try:
            self.on_prepare(d)
        except RuntimeError as e:
            return self.client.report(
                self.name, NodeReport(deployment=d["name"], state="failed", phase="failed", detail=str(e), error_code="operator", **said)
            )
        return self.client.report(self.name, NodeReport(deployment=d["name"], state="ready", phase="ready", **said))

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.client.leave(self.name)
        self._thread.join(bound(20))
        assert not self._thread.is_alive()
