"""`udo` on a node with the Docker driver: operators on a published runtime base, whole images, and images that a bare node pulls."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Shell
from tests.conftest import require
from tests.support.docker_daemon import Daemon
from udo_interface import connect

# A whole image that `udo` did not pack: the base's interpreter and protocol runtime, with an operator baked in.
WHOLE = """
FROM {base}
COPY op.py /opt/own/op.py
ENV UDO_PYTHONPATH=/opt/own:/opt/udo/runtime
"""


@pytest.fixture(scope="module")
def base(runtime_image: str) -> str:
    """The runtime base for this Python, which `udo push` looks for."""
    if runtime_image != (wanted := f"udo-runtime-python:cp{sys.version_info.major}{sys.version_info.minor}"):
        require(wanted, f"Debian's Python made {runtime_image}; run the tests with that Python")
    return runtime_image


@pytest.fixture
def node(docker: Daemon, base: str, udo: Shell) -> Iterator[Shell]:
    """A platform whose node runs containers; it is down before the daemon is checked for left-overs."""
    udo.env |= docker.environment
    udo("up", "--driver", "docker")
    yield udo
    udo("down")


def ask(node: Shell, deployment: str, a: int) -> int:
    """Send one event and return its answer."""
    answers: list[int] = []
    with connect(deployment, node=str(node.home / "node" / "node.sock")) as client:
        client.add_listener(lambda e: answers.append(e["b"]))
        client.send({"a": a})
        client.flush(30)
    return answers[0]


@pytest.mark.long
def test_an_operator_on_a_published_base_and_a_whole_image_replace_each_other(
    node: Shell, docker: Daemon, base: str, operator: Callable[..., Path], tmp_path: Path
) -> None:
    node("registry", "base", "push", base)
    assert "base: udo/runtime-python" in node("push", operator(plus=1)).err
    node("deploy", "t@1")
    assert ask(node, "t", 1) == 2

    folder = operator(version="2", plus=100)
    (folder / "Dockerfile").write_text(WHOLE.format(base=base))
    docker("build", "--quiet", "--network=none", "--tag=own:2", str(folder))
    node("push", folder, "--image", "own:2")
    docker("rmi", "own:2")  # the node pulls the running image by digest
    node("update", "t", "2")
    assert ask(node, "t", 1) == 101

    node("push", operator(version="3", plus=1000))
    node("update", "t", "3")
    assert ask(node, "t", 1) == 1001

    node("registry", "base", "push", base, "--python", "3.99")  # pretend: the tag only has to differ from the node's Python
    node("push", operator(version="4", plus=10_000), "--python", "3.99")
    node("update", "t", "4")  # as a whole image
    assert ask(node, "t", 1) == 10_001
    assert "udo-" in docker("ps", "--filter=label=dev.udo.instance")


# Tries to write and to connect, which is denied to its package form, and uses the environment given to it; some events make it fail.
TRIED = """
import os, socket, time
from udo_runtime import Operator

def attempt(what):
    try:
        what()
    except OSError:
        return 0
    return 1

class Run(Operator):
    def process(self, event, ctx):
        print("seen", event["a"])
        if event["a"] == 13:
            raise ValueError("unlucky")
        if event["a"] == 77:
            bytearray(300 << 20)
        if event["a"] == 99:
            time.sleep(60)
        host = ("127.0.0.1", int(os.environ["PORT"]))
        reached = attempt(lambda: open("/etc/x", "w")) + attempt(lambda: socket.create_connection(host, 1))
        yield {"b": event["a"] + int(os.environ["PLUS"]) + 1_000_000 * reached}
"""


@pytest.fixture
def image(docker: Daemon, base: str) -> Iterator[Callable[[Path, str], str]]:
    """Build a whole image of one module, which keeps its name from the package; the image is removed at the end."""
    built = []

    def build(folder: Path, module: str) -> str:
        entry = f"ENV UDO_PYTHONPATH=/opt/own:/opt/udo/runtime\nCOPY {module}.py /opt/own/{module}.py"
        (folder / "Dockerfile").write_text(f"FROM {base}\n{entry}\n")
        built.append(f"{module}:tried")
        docker("build", "--quiet", "--network=none", f"--tag={built[-1]}", str(folder))
        return built[-1]

    def known() -> set[str]:
        return set(docker("images", "--format", "{{.ID}} {{.Repository}} {{.Digest}}").splitlines())

    before = known()
    yield build
    for name in built:
        docker("rmi", name)
    assert known() == before, "what the node pulled is given back"


@pytest.mark.long
def test_a_whole_image_is_tried_with_the_answers_errors_and_limits_of_production(
    udo: Shell, docker: Daemon, image: Callable[[Path, str], str], operator: Callable[..., Path], tmp_path: Path
) -> None:
    folder = operator(source=TRIED)
    manifest = (folder / "operator.toml").read_text()
    manifest = manifest.replace("op:run", "op:Run").replace("answer_timeout_s", "memory_mb = 200\nanswer_timeout_s")
    (folder / "operator.toml").write_text(manifest)
    reference = image(folder, "op")

    def tried(*events: int, code: int = 0) -> Done:
        (tmp_path / "e.json").write_text(json.dumps([{"a": a} for a in events]))
        options = ("--image", reference, "--events", tmp_path / "e.json", "--env", "PLUS=100", "--batch-rows", "2")
        with socket.create_server(("127.0.0.1", 0)) as host:
            port = f"PORT={host.getsockname()[1]}"
            return udo("test", folder, *options, "--env", port, code=code, **docker.environment)

    good = tried(1, 2, 3)
    assert [json.loads(line)["b"] for line in good.out.splitlines()] == [101, 102, 103], "no file was written, nothing on the host reached"
    assert "3 events, 3 answers" in good.err and "seen 3" in good.err

    failed = tried(1, 13, code=6).err
    for part in ("ValueError: unlucky", 'The offending event: {"a": 13}', 'raise ValueError("unlucky")'):
        assert part in failed
    assert "did not answer a frame within 2 s" in tried(99, code=6).err
    assert "memory limit of 200 MiB exceeded" in tried(77, code=6).err
    assert docker.left() == []
    assert "belong to --replay" in udo("test", folder, "--image", reference, "--pdb", code=2).err


@pytest.mark.long
def test_a_whole_image_that_is_missing_or_does_not_start_is_told(
    udo: Shell, docker: Daemon, image: Callable[[Path, str], str], operator: Callable[..., Path], tmp_path: Path
) -> None:
    folder = operator(source="raise RuntimeError('no model here')")
    assert "no-such-image:1" in udo("test", folder, "--image", "no-such-image:1", code=3, **docker.environment).err
    failed = udo("test", folder, "--image", image(folder, "op"), code=6, **docker.environment).err
    assert "RuntimeError: no model here" in failed and "op.py" in failed
    (tmp_path / "junk.tar").write_bytes(b"no image")
    assert "junk.tar is not a readable archive" in udo("test", folder, "--image", tmp_path / "junk.tar", code=2).err
    assert docker.left() == []


@pytest.mark.long
def test_a_keyed_whole_image_gets_its_events_as_one_micro_batch_and_its_timers_fire(
    udo: Shell, docker: Daemon, image: Callable[[Path, str], str], tmp_path: Path
) -> None:
    example = Path(__file__).parents[2] / "examples" / "operators" / "card_testing"
    folder = Path(shutil.copytree(example, tmp_path / "card_testing"))
    reference = image(folder, "card_testing")
    as_package = udo("test", folder, "--json").json["answers"]
    as_image = udo("test", folder, "--image", reference, "--json", **docker.environment).json["answers"]
    assert as_image == as_package and {a["kind"] for a in as_image} == {"alert", "quiet"}


@pytest.mark.long
def test_a_node_without_the_runtime_base_pulls_it_from_the_registry(
    node: Shell, docker: Daemon, base: str, operator: Callable[..., Path]
) -> None:
    node("registry", "base", "push", base)
    node("push", operator(name="u"))
    docker("tag", base, "kept:base")
    docker("rmi", base)
    try:
        assert "No such image" in docker.fails("image", "inspect", base)
        node("down")
        node("up", "--driver", "docker")
        node("deploy", "u@1")
        assert ask(node, "u", 1) == 2
    finally:
        docker("tag", "kept:base", base)
        docker("rmi", "kept:base")


@pytest.mark.long
def test_down_removes_the_containers_of_a_node_manager_that_was_killed(node: Shell, docker: Daemon, operator: Callable[..., Path]) -> None:
    node("push", operator(name="v"))
    node("deploy", "v@1")
    os.kill(json.loads((node.home / "node" / "process.json").read_text())["pid"], signal.SIGKILL)
    assert docker.left()
    for record in (node.home / "node" / "handles").iterdir():  # as if it had died before it could write them
        record.unlink()

    assert "killed what was left" in node("down").err

    assert docker.left() == []
