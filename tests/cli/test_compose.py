"""docker/compose.yaml itself: registry and node manager in containers, and a job on Spark's standalone master and worker."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound
from tests.support.docker_daemon import DEBIAN, PATH, ROOT, Daemon, script, tool

JOB = """
from udo_interface import udo
from udo_interface.java import spark_session
spark = spark_session("compose", master="spark://127.0.0.1:{port}", **{{"spark.executor.memory": "1g"}})
spark.sparkContext.setLogLevel("OFF")
rows = udo("t")(spark.range(0, 4000, 1, 4).withColumnRenamed("id", "a")).collect()
print("answers are exact:", sorted(r.b for r in rows) == list(range(1, 4001)))
spark.stop()
"""


@dataclass(frozen=True)
class Compose:
    """The compose file as a project of its own, on free ports."""

    command: str
    environment: dict[str, str]

    def __call__(self, *arguments: str, stdin: str = "", timeout_s: float = 120) -> str:
        """Run docker-compose, which must succeed, and return its standard output."""
        command = [self.command, "--file", str(ROOT / "docker" / "compose.yaml"), "--project-name", "udotest", *arguments]
        environment = {**os.environ, **self.environment, "PATH": PATH}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
        return done.stdout


def _free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture
def compose(docker: Daemon, runtime_image: str) -> Iterator[Compose]:
    """The cluster, up; it is taken down with its volumes at the end."""
    command = tool("docker-compose", "docker-compose")
    script(docker, "platform.sh", DEBIAN)
    home = Path(tempfile.mkdtemp(prefix="udo-c-"))
    ports = {name: _free_port() for name in ("UDO_REGISTRY_PORT", "SPARK_MASTER_PORT")}
    interfaces = {"SPARK_MASTER_UI_PORT": "0", "SPARK_WORKER_UI_PORT": "0"}
    places = {"UDO_HOME": str(home), "DOCKER_SOCKET": docker.host.removeprefix("unix://")}
    made = Compose(command, {**docker.environment, **ports, **interfaces, **places})
    try:
        made("up", "--detach")
        yield made
    finally:
        made("down", "--volumes", "--timeout", "30")
        shutil.rmtree(home, ignore_errors=True)
    assert docker("ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project=udotest") == ""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_on_the_standalone_cluster_calls_an_operator_in_a_container(
    compose: Compose, udo: Shell, operator: Callable[..., Path]
) -> None:
    token = compose("exec", "-T", "registry", "cat", "/data/token").strip()
    udo.env |= {"UDO_REGISTRY": f"http://127.0.0.1:{compose.environment['UDO_REGISTRY_PORT']}", "UDO_TOKEN": token}
    udo("push", operator())
    udo("deploy", "t@1")

    job = JOB.format(port=compose.environment["SPARK_MASTER_PORT"])
    said = compose("exec", "-T", "spark-worker", "spark.sh", "python3", "-", stdin=job, timeout_s=bound(200))

    assert "answers are exact: True" in said
