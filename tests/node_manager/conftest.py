"""Node managers in processes of their own, operators given as source text, and callers that push and collect."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest

from node_manager.manager import Manager
from node_manager.rpc.service import RpcServer
from node_manager.servers.binaries import find_server
from node_manager.settings import NodeSettings
from tests.conftest import bound, require, wait_until
from tests.support import forked
from tests.support.forked import Forked
from tests.support.lanes import opened
from udo_protocol.certificates import Tls
from udo_protocol.errors import UdoError, Unavailable
from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.schema import from_ipc, schema_id
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import DATA, ERROR, Frame, Header, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import LaneEnd, Push

if TYPE_CHECKING:
    from tests.cli.conftest import Shell
    from tests.support.cluster import Cluster

ADD = """
import os
from udo_runtime import operator
@operator
def run(batch):
    return {{"b": [a + {n} for a in batch.column("a").to_pylist()]}}
"""


def add(n: int) -> str:
    """Return the source of an operator that answers b = a + n."""
    return ADD.format(n=n)


def put_image(
    home: Path,
    source: str,
    *,
    name: str = "t",
    version: str = "1",
    dependencies: Mapping[str, str] | None = None,
    **manifest: Any,
) -> str:
    """Put an operator into the node's image cache, as if it had been pulled; return its digest."""
    fields: dict[str, Any] = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}, **manifest}
    m = Manifest(name=name, version=version, **fields)
    digest = "sha256:" + hashlib.sha256((m.model_dump_json() + source + repr(dependencies)).encode()).hexdigest()
    directory = home / "images" / digest.replace(":", "-")
    files = {"code/op.py": source, **{f"deps/{k}": v for k, v in (dependencies or {}).items()}}
    for kind in ("code", "deps"):
        (directory / kind).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    (directory / "manifest.json").write_text(m.model_dump_json())
    return digest


class Lane:
    """A caller of a deployment: pushes batches of one column `a`, collects answers."""

    def __init__(self, node: NodeClient, deployment: str, lane: str = "test", tls: Tls | None = None, **options: Any) -> None:
        reply = opened(node, deployment, lane, **options)
        self.reply = reply
        self.input = from_ipc(reply.input_schema)
        slot = reply.slots[0]
        self.conn = Connection(slot.queue_socket, run_id=slot.run_id, login=Login(slot.user, slot.password), tls=tls or node.tls)
        self.end = LaneEnd(self.conn, SlotKeys.parse(slot.prefix), lane)
        self.end.open(reply.input_schema)
        self.name, self.sent = lane, 0
        self.schema_id = schema_id(reply.input_schema)
        self._pending: list[Frame] = []

    def send(self, values: Sequence[int]) -> None:
        """Push one frame."""
        n = self.sent + 1
        batch = pa.RecordBatch.from_arrays([pa.array(values, self.input.field(0).type)], schema=self.input)
        header = Header(lane=self.name, number=n, kind=DATA, rows=batch.num_rows, schema=self.schema_id)
        reply = self.end.push(n, self.sent, encode(header, batch))
        assert reply.status is Push.ACCEPTED, reply
        self.sent = n

    def receive(self, timeout_s: float = 20.0) -> Frame:
        """Wait for the next answer."""
        begun = time.monotonic()
        while not self._pending:
            left_ms = int((begun + bound(timeout_s) - time.monotonic()) * 1000)
            assert left_ms > 0, f"no answer within {timeout_s} s; status: {self.end.status()}"
            self._pending = self.end.collect(min(left_ms, 1000))
        return self._pending.pop(0)

    def values(self, frame: Frame) -> list[Any]:
        """Return column `b` of an answer."""
        assert frame.header.kind != ERROR, frame.header.failure.message
        return frame.batch(self.end.schema(frame.header.schema)).column("b").to_pylist()  # type: ignore[no-any-return]

    def ask(self, value: int, timeout_s: float = 20.0) -> Any:
        """Send one event and return its answer."""
        self.send([value])
        return self.values(self.receive(timeout_s))[0]


class Daemon:
    """A node manager in a process of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: Forked | None = None
        self.api = connect_node(home / "node.sock")

    def start(self, *args: str, wait: bool = True) -> Daemon:
        """Start it and wait until it serves. It keeps no warm instance ready: one would be started in vain at the end of each test."""
        with (self.home.parent / "manager.log").open("ab") as log:
            output = (log.fileno(), log.fileno())
            self.process = forked.start("node_manager", ["--home", str(self.home), "--node", "n1", "--warm", "0", *args], output=output)
        if wait:
            wait_until(lambda: self.api.healthy() or self.process.poll() is not None, 30, "node manager to serve")  # type: ignore[union-attr]
            assert self.process.poll() is None, self.log()
        return self

    def log(self) -> str:
        """Return the node manager's log."""
        return (self.home.parent / "manager.log").read_text()

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(bound(10))
        self.api.close()

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask it to stop itself and all it started; return its exit status."""
        assert self.process is not None
        self.process.send_signal(signum)
        status = self.process.wait(bound(40))
        self.api.close()
        return status

    def deploy(self, source: str, *, name: str = "d", config_json: str = "{}", wait_ms: int = 30_000, **image: Any) -> str:
        """Put the image and deploy it; return its digest."""
        digest = put_image(self.home, source, **image)
        operator, version = image.get("name", "t"), image.get("version", "1")
        self.api.deploy(name, operator, version, digest, config_json, wait_ms)
        return digest

    def slot(self, name: str = "d") -> Any:
        """Return the status of the deployment's own slot."""
        return next(s for s in self.api.status().slots if s.deployment == name and not s.pinned)

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all its instances."""
        found = []
        for path in (self.home / "handles").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # the instance has just gone
                found.append(json.loads(path.read_text()))
        return found

    def loading(self) -> int:
        """Return the number of instances that are loading."""
        return sum(record["state"] == "loading" for record in self.records())

    def processes(self) -> list[psutil.Process]:
        """Return all processes that belong to this home: servers, watchdog, instances."""
        found = []
        for p in psutil.process_iter(["cmdline", "cwd", "status"]):
            words = [*(p.info["cmdline"] or []), p.info["cwd"] or ""]
            mine = any(str(self.home) in w for w in words) and p.pid != os.getpid()
            if mine and p.info["status"] != psutil.STATUS_ZOMBIE and (self.process is None or p.pid != self.process.pid):
                found.append(p)
        return found


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home whose path is short enough for sockets."""
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    top = Path(tempfile.mkdtemp(prefix="udo-"))
    yield top / "h"
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def home_daemon(home: Path) -> Iterator[Daemon]:
    """A node manager for the test to start; no process of it may be left when the test ends."""
    d = Daemon(home)
    try:
        yield d
    finally:
        with contextlib.suppress(UdoError, subprocess.TimeoutExpired):
            if d.process is not None and d.process.poll() is None:
                d.stop()
        _, left = psutil.wait_procs(d.processes(), timeout=bound(5))  # a process that has ended stays visible until it is reaped
        for p in left:
            with contextlib.suppress(psutil.Error):
                p.kill()
    assert not left, f"left running: {left}"


@pytest.fixture
def daemon(home_daemon: Daemon) -> Daemon:
    """A running node manager."""
    return home_daemon.start()


@pytest.fixture
def manager(home: Path) -> Iterator[Manager]:
    """A node manager within this process; it is stopped with all it started, however the test ended."""
    made = Manager(NodeSettings(home, "n"))
    made.lock_home()
    made.start()
    try:
        yield made
    finally:
        if not made.deployments.closed:
            made.stop()
        left = Daemon(home).processes()
        for p in left:
            p.kill()
    assert left == []


@pytest.fixture
def api(manager: Manager) -> Iterator[NodeClient]:
    """A client for `manager`."""
    server = RpcServer(manager)
    server.start()
    with contextlib.closing(connect_node(manager.settings.socket)) as node:
        yield node
    assert server.stop().wait(bound(10))


@pytest.fixture
def lane(daemon: Daemon) -> Iterator[Callable[..., Lane]]:
    """lane(deployment) opens a lane; closed at the end."""
    opened: list[Lane] = []

    def open_lane(deployment: str = "d", name: str = "", **options: Any) -> Lane:
        opened.append(Lane(daemon.api, deployment, name or f"lane{len(opened)}", **options))
        return opened[-1]

    yield open_lane
    for each in opened:
        with contextlib.suppress(UdoError, OSError):
            each.conn.close()


@pytest.fixture
def cluster(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A registry and one node that follows it."""
    from tests.support.cluster import running

    with running(home, tmp_path / "registry") as c:
        yield c


@pytest.fixture
def udo(tmp_path: Path) -> Shell:
    """The command, without a platform."""
    from tests.cli.conftest import Shell

    return Shell(tmp_path / "home")


@pytest.fixture
def local(tmp_path: Path) -> Callable[..., Path]:
    """local(source, **manifest) writes an operator into a folder."""
    from tests.support.recording import folder

    def write(source: str, **manifest: Any) -> Path:
        return folder(tmp_path / f"local{len(list(tmp_path.iterdir()))}", source, **manifest)

    return write
