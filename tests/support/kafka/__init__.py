"""A Kafka broker of the test module's own, and Spark's connector to it; their jars come from Maven."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import bound, wait_until
from tests.operators.sdks import maven, tools
from udo_interface.java import java_home

# The jars that Spark needs beyond its own, by the beginnings of their names.
CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
# No second copy of anything, and small files, since the log is deleted with the test.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    "log.segment.bytes": "16777216",
    "log.index.size.max.bytes": "65536",
}


def jars(scratch: Path) -> Path:
    """A folder with the broker's jars and the connector's."""
    tools("mvn")
    copy = Path(shutil.copytree(Path(__file__).parent, scratch / "pom", ignore=shutil.ignore_patterns("*.py", "__pycache__")))
    maven(copy, "dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}", "-DincludeScope=runtime")
    return scratch / "jars"


def connector(folder: Path) -> list[Path]:
    """The jars that Spark needs."""
    return sorted(jar for jar in folder.iterdir() if jar.name.startswith(CONNECTOR))


class Broker:
    """A broker that is its own controller, on the loopback device."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder, self._home = folder, home
        self._held = [_held_port() for _ in range(2)]
        own, controller = (f"127.0.0.1:{port.getsockname()[1]}" for port in self._held)
        self.address = own
        settings = SETTINGS | {
            "listeners": f"PLAIN://{own},CONTROLLER://{controller}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(home / "logs"),
        }
        (home / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._run("kafka.tools.StorageTool", "format", "-t", "dGhlIHRlc3RzJyBvd24uLg", "-c", str(home / "server.properties"))
        with (home / "broker.log").open("wb") as log:
            command = self._java("kafka.Kafka", str(home / "server.properties"))
            self._process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
        try:
            wait_until(lambda: self._serves() or self._process.poll() is not None, 60, "Kafka's start")
            assert self._process.poll() is None, (home / "broker.log").read_text()[-4000:]
        except BaseException:
            self.stop()
            raise

    def _java(self, *words: str) -> list[str]:
        home = java_home()
        java = str(home / "bin" / "java") if home else "java"
        return [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._folder}/*", *words]

    def _run(self, *words: str) -> None:
        done = subprocess.run(self._java(*words), capture_output=True, text=True, timeout=bound(60), check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def partitions(self, topic: str, count: int) -> None:
        """Give a topic this many partitions; it has two when it is first written to."""
        command = ("--alter", "--topic", topic, "--partitions", str(count))
        self._run("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *command)

    @contextmanager
    def producer(self, topic: str) -> Iterator[Callable[[str, str], None]]:
        """Kafka's program that writes its input to a topic; yields send(key, value)."""
        command = self._java("kafka.tools.ConsoleProducer", "--bootstrap-server", self.address, "--topic", topic)
        command += ["--property", "parse.key=true", "--property", "key.separator=\t"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            told = process.stdin

            def send(key: str, value: str) -> None:
                told.write(f"{key}\t{value}\n")
                told.flush()

            yield send

    @contextmanager
    def consumer(self, topic: str) -> Iterator[Path]:
        """Kafka's program that writes a topic's records to a file, `key <tab> value` on each line; yields the file's path."""
        command = self._java("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", self.address, "--topic", topic)
        command += ["--from-beginning", "--property", "print.key=true", "--property", "key.separator=\t"]
        with (self._home / f"{topic}.txt").open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL) as process:
            try:
                yield Path(file.name)
            finally:
                process.kill()

    def _serves(self) -> bool:
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End it and wait."""
        self._process.kill()
        self._process.wait()
        for port in self._held:
            port.close()


def _held_port() -> socket.socket:
    """A loopback port that is never given to a program that asks for any free port; Java can listen on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
