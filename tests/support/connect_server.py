"""A Spark Connect server in a process of its own, as `sbin/start-connect-server.sh` starts one."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark

from tests.conftest import bound, wait_until
from udo_interface import java

START_S = 120
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(directory: Path, conf: Mapping[str, str]) -> Iterator[str]:
    """Start a server and yield its URL. The server's output is in `directory`/connect.log."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**java.SETTINGS, **java.QUIET, **conf, "spark.connect.grpc.binding.address": "127.0.0.1"}
    settings |= {"spark.connect.grpc.binding.port": str(port), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2,2]", "--class", _CLASS]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    java.prepare(env)
    log = directory / "connect.log"
    with log.open("wb") as said:
        process = subprocess.Popen([*command, "spark-internal"], env=env, cwd=directory, stdout=said, stderr=said)
    try:
        wait_until(lambda: process.poll() is not None or _answers(port), START_S, "the Connect server to listen")
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(bound(60))


def _answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
