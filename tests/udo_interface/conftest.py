"""A real platform (registry and node manager) and one Spark session for the tests of udo_interface."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from node_manager.servers import access
from node_manager.servers.binaries import find_server
from tests.conftest import bound, require, wait_until
from tests.support import forked
from tests.support.forked import Forked
from udo_cli.packing.image import assemble
from udo_cli.packing.layers import CODE_ROOT, Layer, files_of, pack
from udo_cli.packing.upload import upload
from udo_interface.java import QUIET, java_home, spark_session
from udo_interface.spark import settings
from udo_protocol.errors import Unavailable
from udo_protocol.formats.manifest import parse
from udo_protocol.node.api import connect_node
from udo_protocol.queue.connection import Connection
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S = 60
FORWARD = """
from udo_runtime import operator
@operator
def run(batch):
    return batch
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `both_paths` on both paths; with UDO_TEST_PATHS=both, run all others on the default path and on the Python path."""
    if "spark" not in metafunc.fixturenames:
        return
    if metafunc.definition.get_closest_marker("both_paths") is not None:
        paths = [pytest.param(settings.PYTHON, id="python"), pytest.param(settings.JVM, id="jvm", marks=pytest.mark.long)]
        metafunc.parametrize("call_path", paths, indirect=True)
    elif os.environ.get("UDO_TEST_PATHS") == "both":
        metafunc.parametrize("call_path", [settings.AUTO, settings.PYTHON], indirect=True)


@pytest.fixture(autouse=True)
def call_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of calls that name none: the product's default, unless the test is parametrised with another one."""
    chosen: str = getattr(request, "param", settings.AUTO)
    if chosen == settings.AUTO:
        yield chosen
        return
    session: SparkSession = request.getfixturevalue("spark")
    session.conf.set(settings.PATH, chosen)
    try:
        yield chosen
    finally:
        session.conf.unset(settings.PATH)


class Platform:
    """A registry and a node manager in processes of their own, under one directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.node = str(home / "node" / "node.sock")
        self._processes: list[Forked] = []
        self._names = itertools.count()
        try:
            self._start_registry()
            self.start_node()
        except BaseException:  # the caller has no platform to stop yet
            self.stop()
            raise

    def _start_registry(self) -> None:
        directory, token = self.home / "registry", self.home / "token"
        directory.mkdir()
        self._start("registry", "--data", str(directory), "--listen", f"unix:{self.home}/registry.sock", "--token-file", str(token))
        address = directory / "address"
        self._wait_for(address.exists, "registry", "listen")
        self.url = address.read_text().strip()
        self.api = Registry(self.url, token=token.read_text().split()[0], user="tests")

    def start_node(self) -> None:
        """Start the node manager (again) and wait until the registry knows it."""
        arguments = ["--home", str(self.home / "node"), "--node", "n1", "--registry", self.url, "--token-file", str(self.home / "token")]
        self.manager = self._start("node_manager", *arguments)
        self._wait_for(lambda: connect_node(self.node).healthy() and bool(self.api.nodes()), "node_manager", "serve")

    def _wait_for(self, met: Callable[[], bool], part: str, what: str) -> None:
        """Wait until the part that was started last does this; fail at once, with the end of its log, if it ends instead."""
        process = self._processes[-1]
        wait_until(lambda: met() or process.poll() is not None, START_TIMEOUT_S, f"{part} to {what}")
        if process.poll() is not None:
            pytest.fail(f"{part} ended with status {process.returncode}: {(self.home / f'{part}.log').read_text()[-2000:]}")

    def _start(self, program: str, *arguments: str) -> Forked:
        with (self.home / f"{program}.log").open("ab") as log:
            p = forked.start(program, arguments, output=(log.fileno(), log.fileno()))
        self._processes.append(p)
        return p

    def push(self, source: str, *, name: str, version: str = "1", dependencies: Layer | None = None, **manifest: Any) -> None:
        """Push a version of an operator whose module is this source; its entry is `op:run` unless another one is given."""
        fields: dict[str, Any] = {"entry": "op:run", "input": {"id": "int64"}, "output": {"id": "int64"}, **manifest}
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "op.py").write_text(textwrap.dedent(source))
            self.push_folder(Path(work), dependencies, name=name, version=version, **fields)

    def push_folder(self, code: Path, dependencies: Layer | None = None, **manifest: Any) -> None:
        """Push a version of an operator whose code is this folder."""
        checked = parse(manifest, "test")
        with tempfile.TemporaryDirectory() as work:
            layer = pack("code", CODE_ROOT, files_of(code), Path(work) / "code.tar.gz")
            upload(self.api, checked, assemble(checked, [*([dependencies] if dependencies else []), layer]), lambda _: None)

    def deploy(self, name: str, version: str = "1", **options: Any) -> None:
        """Deploy and wait until the node answers, or says why it cannot."""
        self.api.deploy(name, name, version, **options)
        wait_until(lambda: self.state(name) in ("answering", "failed"), START_TIMEOUT_S, f"{name} to answer")

    def state(self, name: str) -> str:
        """Return the state of a deployment as the node reports it."""
        return "".join(n["state"] for n in self.api.deployment(name)["nodes"])

    def operator(self, source: str = FORWARD, **manifest: Any) -> str:
        """Push and deploy an operator under a name of its own; return the name."""
        name = f"op{next(self._names)}"
        self.push(source, name=name, **manifest)
        self.deploy(name)
        return name

    def deployed(self) -> set[str]:
        """Return the names of all deployments."""
        return {d["name"] for d in self.api.deployments()}

    def update(self, name: str, version: str) -> str:
        """Update live; return the last phase."""
        return str(list(self.api.update(name, version))[-1]["phase"])

    def slots(self, deployment: str) -> list[Any]:
        """Return the slots of a deployment on the node."""
        return [s for s in connect_node(self.node).status().slots if s.deployment == deployment]

    def queue(self) -> Connection:
        """Return a fresh connection to the node's queue server, as the node manager."""
        return access.connect(self.home / "node", "queue")

    def sign(self) -> Path:
        """Return the path of a file that does not exist yet, in the one directory of the node that operators see."""
        return self.home / "node" / "run" / f"sign{next(self._names)}"

    def said(self, name: str, text: str) -> bool:
        """Return whether an instance of this deployment has written a line with this text."""
        return any(text in line.text for line in connect_node(self.node).logs(name))

    def kill_queue_server(self) -> None:
        """kill -9 of the node's queue server."""
        pid = next(s.pid for s in connect_node(self.node).status().servers if s.role == "queue")
        os.kill(pid, signal.SIGKILL)

    def lose_node(self) -> None:
        """Stop the node manager and both servers, remove all their files, and start again with nothing."""
        self.manager.terminate()
        self.manager.wait(bound(30))
        connect_node(self.node).close()
        shutil.rmtree(self.home / "node")
        self.start_node()
        for name in self.deployed():
            try:
                wait_until(lambda n=name: self.state(n) == "answering", START_TIMEOUT_S, f"{name} to answer")  # type: ignore[misc]
            except pytest.fail.Exception as e:
                log = (self.home / "node_manager.log").read_text()[-6000:]
                pytest.fail(f"{e}: the registry knows {self.api.deployment(name)['nodes']} and {self.api.nodes()}; the node's log:\n{log}")

    def stop(self) -> None:
        """Stop both and wait."""
        for p in reversed(self._processes):
            if p.poll() is None:
                p.terminate()
                try:
                    p.wait(bound(30))
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait(bound(10))
        if hasattr(self, "api"):
            self.api.close()
        connect_node(self.node).close()


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """One platform for the session."""
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    with tempfile.TemporaryDirectory(prefix="udo-") as home:  # short: socket paths are bounded
        started = Platform(Path(home))
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(autouse=True)
def left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undeploy what the test deployed on the session's platform: otherwise each kill of the queue server restarts all of it."""
    if "platform" not in request.fixturenames:
        yield
        return
    shared: Platform = request.getfixturevalue("platform")
    before = shared.deployed()
    yield
    for name in shared.deployed() - before:
        shared.api.undeploy(name, drop_state=True)


@pytest.fixture(scope="module")
def lossy() -> Iterator[Platform]:
    """A platform of the module's own, whose node may be lost."""
    with tempfile.TemporaryDirectory(prefix="udo-") as home:
        started = Platform(Path(home))
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(scope="session")
def java() -> None:
    """Require a Java for Spark."""
    try:
        java_home()
    except Unavailable as e:
        require("java", str(e))


@pytest.fixture(scope="session")
def spark(platform: Platform, java: None) -> Iterator[SparkSession]:
    """One Spark session for all tests; a failed task is tried once more, as on a cluster."""
    conf = {
        "spark.udo.registry": platform.url,
        "spark.udo.node": platform.node,
        "spark.sql.warehouse.dir": str(platform.home / "warehouse"),
    }
    session = spark_session("udo-tests", master="local[2,2]", **QUIET, **conf)
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
