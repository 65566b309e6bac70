"""Commands under the Docker driver: a statically linked one gets a container with only its package, another one gets a base image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import docker as sdk
import pytest
from docker.models.containers import Container

from node_manager.drivers.docker import INSTANCE_LABEL
from node_manager.drivers.docker_images import EMPTY_LABEL, EMPTY_NAME
from node_manager.instances import linking
from node_manager.servers.watchdog import HOME_LABEL
from tests.conftest import bound, patience, wait_until
from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.operators.conftest import put_program
from tests.operators.counted import COUNT as COUNT_BY_K
from tests.operators.counted import PYTHON_COUNT, counted, put
from tests.operators.sdks import static_rust
from tests.support.attempt import Attempt
from tests.support.diffs import Running
from tests.support.docker_daemon import DEBIAN, USERS, seen_by
from tests.support.docker_daemon import Daemon as Docker
from tests.support.keyed_node import COUNT, KEYED

# Files that Docker puts into every container: its init, and those of a network. An engine removes its socket once it is connected.
DOCKERS = {"/sbin/docker-init", "/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"}
Containers = Callable[[], list[Container]]


@pytest.fixture
def daemon(docker: Docker, runtime_image: str, home_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A node manager with the Docker driver, to be started by the test unless it uses `started`."""
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    return home_daemon


@pytest.fixture
def started(daemon: Daemon, runtime_image: str) -> Daemon:
    """The same node manager, running."""
    return daemon.start("--driver", "docker", "--runtime-image", runtime_image)


@pytest.fixture
def containers(daemon: Daemon, docker: Docker) -> Iterator[Containers]:
    """A function that lists the containers of this home."""
    client = sdk.DockerClient(docker.host)
    yield lambda: client.containers.list(all=True, filters={"label": f"{HOME_LABEL}={daemon.home}"}, ignore_removed=True)
    client.close()


def deploy(daemon: Daemon, digest: str, config: str = "{}") -> None:
    daemon.api.deploy("d", "t", "1", digest, config, 60_000)


@pytest.mark.long
def test_a_static_program_has_a_container_that_holds_nothing_but_its_package(
    started: Daemon, lane: Callable[..., Lane], programs: Path, containers: Containers
) -> None:
    digest = put_program(started, programs / "testop", "files", output={"b": "string"})
    deploy(started, digest, json.dumps({"files": {"config/a": "eA=="}}))
    own = f"{started.home}/instances/{started.slot().instance}/op"

    seen = set(str(lane().ask(1, 60)).splitlines())

    assert seen - DOCKERS == {f"{own}/{name}" for name in ("code/op.py", "code/bin/testop", "config/a")} | set(USERS)
    (container,) = containers()
    assert container.image is not None and container.image.tags == [EMPTY_NAME]
    assert (container.image.labels, container.image.attrs["Size"]) == ({EMPTY_LABEL: "1"}, 0)
    assert seen_by(container) == {own: False, **USERS}


@pytest.mark.long
def test_a_live_update_between_static_programs_answers_on_and_a_diff_yields_the_processor(
    started: Daemon, lane: Callable[..., Lane], programs: Path, containers: Containers
) -> None:
    deploy(started, put_program(started, programs / "testop", "plus"))
    caller = lane()
    assert caller.ask(1, 60) == 2
    second = put_program(started, programs / "testop", "plus", version="2")
    diff = Running(started, second, for_s=4 * patience()).begun()
    assert [caller.ask(n) for n in (12, 13)] == [13, 14]
    shares = sorted(c.attrs["HostConfig"]["CpuShares"] for c in containers())
    assert shares[0] == 0 and 2 <= shares[1] < 1024, "of the one that serves, which has the default, and the comparing one"
    report = diff.seen(2).end()
    assert (report["frames"], report["different"], report["died"]) == (2, 0, "")

    assert list(started.api.update("d", "2", second))[-1].phase == "done"
    assert caller.ask(1) == 2
    wait_until(lambda: len(containers()) == 1, 20, "the former version's container to go")


@pytest.mark.long
def test_the_state_of_a_key_goes_from_python_into_a_static_program_and_outlives_its_container(
    started: Daemon, programs: Path, containers: Containers
) -> None:
    def count(epoch: int, keys: list[int]) -> list[int]:
        return Attempt.at_node(started.api, "d", "s", epoch, epoch).run(keys)

    started.deploy(COUNT, **KEYED)
    assert count(0, [1, 2, 1]) == [1, 1, 2]
    keyed = {k: v for k, v in KEYED.items() if k != "entry"}
    for epoch, version in ((1, "2"), (2, "3")):
        digest = put_program(started, programs / "testop", "count", version=version, **keyed)
        assert list(started.api.update("d", version, digest))[-1].phase == "done"
        assert count(epoch, [1, 2]) == [2 + epoch, 1 + epoch]
    next(c for c in containers() if c.labels[INSTANCE_LABEL] == started.slot().instance).kill()
    assert count(3, [1, 2, 3]) == [5, 4, 1]
    assert list(started.api.update("d", "4", put_image(started.home, COUNT, version="4", **KEYED)))[-1].phase == "done"  # type: ignore[arg-type]
    assert count(4, [1, 3]) == [6, 2]


@pytest.mark.long
def test_the_same_holds_for_rust(started: Daemon, tmp_path_factory: pytest.TempPathFactory, containers: Containers) -> None:
    rust = static_rust(tmp_path_factory.mktemp("static-rust"), "count")
    started.deploy(PYTHON_COUNT, entry="op:Count", **COUNT_BY_K)
    assert counted(started, 0, [1, 2, 1]) == [1, 1, 2]
    assert list(started.api.update("d", "2", put(started, rust, "count", version="2", **COUNT_BY_K)))[-1].phase == "done"
    assert counted(started, 1, [1, 2, 3, 1]) == [3, 2, 1, 4]
    (container,) = [c for c in containers() if c.labels[INSTANCE_LABEL] == started.slot().instance]
    assert container.image is not None and container.image.tags == [EMPTY_NAME]


@pytest.mark.long
def test_a_program_that_needs_the_systems_runs_in_the_image_that_the_node_names(
    daemon: Daemon, runtime_image: str, programs: Path, containers: Containers, docker: Docker
) -> None:
    daemon.start("--driver", "docker", "--runtime-image", runtime_image, "--command-image", DEBIAN)
    digest = put_image(daemon.home, "", entry="", runtime="exec", command=["sh", "-c", "exec bin/testop plus"])
    code = daemon.home / "images" / digest.replace(":", "-") / "code"
    shutil.copytree(programs, code / "bin")
    deploy(daemon, digest)
    lane = Lane(daemon.api, "d")

    assert lane.ask(1, 60) == 2

    (container,) = containers()
    assert container.image is not None and DEBIAN in container.image.tags
    lane.conn.close()


def test_an_image_for_commands_that_is_not_there_is_said_at_the_start(daemon: Daemon, runtime_image: str) -> None:
    daemon.start("--driver", "docker", "--runtime-image", runtime_image, "--command-image", "nobody/has:this", wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(bound(30)) == 1
    assert "nobody/has:this" in daemon.log() and "--command-image" in daemon.log()


def test_a_static_program_is_told_from_others_by_its_headers_alone(programs: Path, tmp_path: Path) -> None:
    go, sh = programs / "testop", Path("/bin/sh")
    assert linking.static(go)
    assert not linking.static(sh), "it names a loader"
    whole = go.read_bytes()[:4096]
    broken = {
        "a script": b"#!/bin/sh\n" * 20,
        "nothing": b"",
        "a header cut off": whole[:40],
        "a table beyond its end": whole[:32] + b"\xff" * 8 + whole[40:],
        "no table": whole[:56] + bytes(2) + whole[58:],
        "entries of another size": whole[:54] + b"\x07\x00" + whole[56:],
        "more entries than there are": whole[:56] + b"\xff\xff" + whole[58:],
    }
    for name, content in broken.items():
        (tmp_path / "program").write_bytes(content)
        assert not linking.static(tmp_path / "program"), name
    assert not linking.static(tmp_path) and not linking.static(tmp_path / "none")
