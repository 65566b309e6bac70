"""A node manager whose instances are containers: answers, updates, crashes, memory, adoption, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import docker as sdk
import pytest
from docker.models.containers import Container

from node_manager.drivers.docker import INSTANCE_LABEL
from node_manager.servers.watchdog import HOME_LABEL
from tests.conftest import bound, patience, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.attempt import Attempt
from tests.support.canaries import TWO, Watched
from tests.support.cluster import running
from tests.support.diffs import Running
from tests.support.docker_daemon import USERS, seen_by
from tests.support.docker_daemon import Daemon as Docker
from udo_protocol.queue.frame import ERROR

Open = Callable[..., Lane]
COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"b": n}
"""
KEYED = {"entry": "op:Count", "key": ["a"]}
LIMITS = """
import os, resource
from udo_runtime import operator
@operator
def run(batch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = {"files": soft, "hard": hard, "user": os.getuid(), "mine": len(os.listdir("code"))}
    return {"b": [seen[("files", "hard", "user", "mine")[a]] for a in batch.column("a").to_pylist()]}
"""
# Answers with all folders in which it can make a file.
WRITES = """
import os
from udo_runtime import operator

def writable(folder):
    try:
        with open(os.path.join(folder, "made"), "w") as file:
            file.write("x")
        os.remove(file.name)
    except OSError:
        return False
    return True

@operator
def run(batch):
    folders = [top for top, *_ in os.walk("/") if not top.startswith(("/proc", "/sys")) and writable(top)]
    return {"b": [" ".join(sorted(folders))] * batch.num_rows}
"""
GREEDY = """
from udo_runtime import operator
kept = []
@operator
def run(batch):
    kept.append(bytearray(b"x" * (400 << 20)))
    return {"b": batch.column("a")}
"""
# Makes two system calls that need no privilege and that Docker's default seccomp profile refuses; answers whether each was refused.
FORBIDDEN = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
KEYCTL = {"x86_64": 250, "aarch64": 219}[platform.machine()]
CALLS = [lambda: libc.personality(0x0200000), lambda: libc.syscall(KEYCTL, 0, -3, 0)]
def tried(call):
    ctypes.set_errno(0)
    return errno.errorcode[ctypes.get_errno()] if call() == -1 else "done"
"""
TRIES = """
from udo_runtime import operator
@operator
def run(batch):
    return {"b": [tried(CALLS[a]) for a in batch.column("a").to_pylist()]}
"""
HANGS = 99
# Answers with the sockets that it sees, except its own, and the variables that point to a server.
ALONE = """
import os, time
from udo_runtime import operator
@operator
def run(batch):
    if 99 in batch.column("a").to_pylist():
        time.sleep(600)
    home = os.environ["UDO_DIRECTORY"].partition("/instances/")[0]
    sockets = [n for top in (home, "/udo", "/run") for _, _, names in os.walk(top) for n in names if n.endswith(".sock")]
    return {"b": [str(sockets + [n for n in os.environ if "QUEUE" in n or "PASSWORD" in n])] * batch.num_rows}
"""
# b = a + 1, except for 13.
ODD = add(1).replace("a + 1", "a + 1 + (a == 13)")
FILES = """
from pathlib import Path
from udo_runtime import operator
@operator
def run(batch):
    return {"b": [int(Path("config/plus").read_text()) + a for a in batch.column("a").to_pylist()]}
"""


@pytest.fixture
def daemon(docker: Docker, runtime_image: str, home_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A running node manager with the Docker driver; the test must leave no container."""
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    return home_daemon.start("--driver", "docker", "--warm", "1", "--runtime-image", runtime_image)


@pytest.fixture
def containers(daemon: Daemon, docker: Docker) -> Iterator[Callable[[], list[Container]]]:
    """Return the containers of this home."""
    client = sdk.DockerClient(docker.host)
    label = f"{HOME_LABEL}={daemon.home}"
    yield lambda: client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    client.close()


def test_events_are_answered_from_a_container_and_an_update_takes_a_warm_one(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    assert caller.ask(1) == 2

    steps = list(daemon.api.update("d", "2", put_image(daemon.home, add(100), version="2")))

    assert steps[-1].phase == "done", steps
    assert caller.ask(1) == 101


def test_an_instance_is_bounded_by_its_manifest_and_is_nobody_on_this_machine(
    daemon: Daemon, lane: Open, containers: Callable[[], list[Container]]
) -> None:
    daemon.deploy(LIMITS, limits={"open_files": 100, "memory_mb": 300, "cpus": 1.5, "pids": 50})
    caller = lane()

    assert [caller.ask(n) for n in range(4)] == [100, 100, 65532, 1]
    mine = next(c for c in containers() if c.name == f"udo-{daemon.slot().instance}")
    given = mine.attrs["HostConfig"]
    assert given["NetworkMode"] == "none" and given["ReadonlyRootfs"] and given["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in given["SecurityOpt"]
    assert (given["Memory"], given["MemorySwap"], given["PidsLimit"]) == (300 << 20, 300 << 20, 50)
    assert given["CpuQuota"] / given["CpuPeriod"] == 1.5
    assert seen_by(mine) == {"/udo/instance": False, "/udo/run": False, **USERS}


@pytest.mark.long
def test_files_are_written_to_tmp_and_shared_memory_only(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(WRITES, output={"b": "string"})
    assert lane().ask(1) == "/dev/shm /tmp"
    daemon.deploy(WRITES, name="own", isolation="process", output={"b": "string"})
    assert lane("own").ask(1) == "/dev/shm /tmp"


def test_system_calls_that_the_seccomp_profile_refuses_are_refused_to_an_operator_that_makes_them(
    daemon: Daemon, lane: Open, docker: Docker, runtime_image: str
) -> None:
    daemon.deploy(FORBIDDEN + TRIES, output={"b": "string"})
    caller = lane()

    assert [caller.ask(n) for n in (0, 1)] == ["EPERM", "EPERM"]
    # The refusals come from the profile: without it, the same user may make the calls, with no more capabilities.
    alike = ["--rm", "--network", "none", "--cap-drop", "ALL", "--user", "65532", "--entrypoint", "python3"]
    code = FORBIDDEN + "print(*map(tried, CALLS))"
    assert "EPERM" not in docker("run", *alike, "--security-opt", "seccomp=unconfined", runtime_image, "-c", code)


def test_keyed_state_survives_the_death_of_its_container_and_an_update(daemon: Daemon, containers: Callable[[], list[Container]]) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]

    next(c for c in containers() if c.name == f"udo-{daemon.slot().instance}").kill()
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1, 3]) == [3, 1]
    steps = list(daemon.api.update("d", "2", put_image(daemon.home, COUNT.replace('"b": n', '"b": -n'), version="2", **KEYED)))

    assert steps[-1].phase == "done", steps
    assert Attempt.at_node(daemon.api, "d", "s", 2, 3).run([1, 2]) == [-4, -2]


def test_an_operator_in_a_container_of_its_own_sees_no_server_keeps_its_state_and_leaves_nothing_when_it_hangs(
    daemon: Daemon, lane: Open, containers: Callable[[], list[Container]]
) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]
    for epoch, version, more, counts in ((1, "2", {"isolation": "process"}, [3, 2]), (2, "3", {}, [4, 3])):
        steps = list(daemon.api.update("d", version, put_image(daemon.home, COUNT, version=version, **KEYED, **more)))
        assert steps[-1].phase == "done", steps
        assert Attempt.at_node(daemon.api, "d", "s", epoch, epoch + 1).run([1, 2]) == counts
    daemon.deploy(ALONE, name="alone", isolation="process", output={"b": "string"}, limits={"answer_timeout_s": 5, "memory_mb": 300})
    serving = daemon.slot("alone").instance
    (own,) = [c for c in containers() if c.labels[INSTANCE_LABEL] == serving]
    assert seen_by(own) == {f"{daemon.home}/instances/{serving}/op": False, **USERS}
    assert own.attrs["HostConfig"]["Memory"] == 300 << 20
    caller = lane("alone")
    assert caller.ask(1) == "[]"
    caller.send([HANGS])
    assert "hung" in caller.receive(60).header.failure.message
    assert lane("alone").ask(1) == "[]"
    assert own.id not in [c.id for c in containers()]


@pytest.mark.long
def test_a_diff_compares_in_a_container_of_its_own_which_goes_with_it(
    daemon: Daemon, lane: Open, containers: Callable[[], list[Container]]
) -> None:
    daemon.deploy(add(1))
    caller = lane()
    caller.ask(1)
    wait_until(lambda: len(containers()) == 2, 60, "a warm one beside the serving one")
    diff = Running(daemon, put_image(daemon.home, ODD, version="2"), for_s=6 * patience()).begun()
    assert [caller.ask(n) for n in (12, 13, 14)] == [13, 14, 15]
    wait_until(lambda: len(containers()) == 3, 20, "another warm one beside the comparing one")
    report = diff.seen(3).end()
    assert (report["frames"], report["different"], report["missed"], report["died"]) == (3, 1, 0, "")
    assert [(e["event"], e["served"], e["new"]) for e in diff.examples] == [({"a": 13}, {"b": 14}, {"b": 15})]
    wait_until(lambda: len(containers()) == 2, 20, "the comparing container to go")
    assert caller.ask(1) == 2


@pytest.mark.long
def test_a_keyed_diff_in_a_container_follows_the_owner(daemon: Daemon) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 3]) == [1, 1]
    source = COUNT.replace("+ 1\n", "+ 1 + (event['a'] == 3)\n")
    diff = Running(daemon, put_image(daemon.home, source, version="2", **KEYED), for_s=4 * patience()).begun()
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1, 3]) == [2, 2]
    assert Attempt.at_node(daemon.api, "d", "s", 2, 3).run([1, 3]) == [3, 3]
    report = diff.seen(4).end()
    assert (report["frames"], report["missed"], report["died"]) == (4, 0, "")
    assert [(e["event"], e["served"], e["new"]) for e in diff.examples] == [({"a": 3}, {"b": n}, {"b": n + 1}) for n in (2, 3)]


@pytest.mark.long
def test_a_canary_in_a_container_is_rolled_back_by_what_it_counts_and_its_lanes_are_answered_on(
    docker: Docker, runtime_image: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    with running(home, tmp_path / "registry", "--driver", "docker", "--warm", "1", "--runtime-image", runtime_image) as cluster:
        cluster.deploy(add(1))
        cluster.push("2", TWO)
        wait_until(lambda: [n["live"] for n in cluster.client.nodes()] == [True], 20, "the node to be live")
        canary = Watched(cluster, 3600, "errors>0").sharing()
        lanes = [cluster.lane() for _ in range(4)]
        assert [lane.ask(1, 30) for lane in lanes] == [2, 101, 2, 101]
        lanes[1].send([-1])
        assert lanes[1].receive(30).header.kind == ERROR
        last = canary.end()
        assert (last["phase"], "errors>0 holds" in last["detail"]) == ("rolled_back", True)
        wait_until(lambda: lanes[3].ask(1, 30) == 2, 30, "the serving version to answer the canary's lanes")


@pytest.mark.long
def test_a_file_of_the_deployment_is_there(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(FILES, config_json='{"files": {"config/plus": "NDE="}}')

    assert lane().ask(1) == 42


def test_dependencies_that_contradict_the_warm_runtime_start_cold_in_front_of_it(daemon: Daemon, lane: Open) -> None:
    source = "import msgpack\n" + add(1).replace("+ 1", "+ msgpack.OWN")
    daemon.deploy(source, dependencies={"msgpack/__init__.py": "OWN = 7"})

    assert lane().ask(1) == 8


@pytest.mark.long
def test_an_operator_that_takes_more_memory_fails_its_frame_by_name_and_the_next_one_is_served(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(GREEDY, limits={"memory_mb": 256})
    caller = lane()
    caller.send([1])

    failure = caller.receive(60).header.failure

    assert failure is not None and "memory limit of 256 MiB exceeded" in failure.message


@pytest.mark.long
def test_a_container_that_is_removed_by_somebody_is_replaced(daemon: Daemon, lane: Open, containers: Callable[[], list[Container]]) -> None:
    daemon.deploy(add(1))
    caller = lane()
    caller.ask(1)
    serving = daemon.slot().instance

    next(c for c in containers() if c.name == f"udo-{serving}").remove(force=True)

    assert caller.ask(1, 60) == 2
    assert daemon.slot().instance != serving


def test_containers_go_on_when_the_manager_is_killed_and_the_next_one_adopts_them_and_removes_strays(
    daemon: Daemon, lane: Open, containers: Callable[[], list[Container]]
) -> None:
    daemon.deploy(add(1))
    caller = lane()
    assert caller.ask(1) == 2
    before = daemon.slot().instance

    daemon.kill()
    assert caller.ask(2) == 3
    stray = next(c for c in containers() if c.name != f"udo-{before}")
    (daemon.home / "handles" / f"{stray.name.removeprefix('udo-')}.json").unlink()
    daemon.start("--driver", "docker", "--warm", "1")

    assert daemon.slot().instance == before
    assert caller.ask(3) == 4
    assert stray.id not in [c.id for c in containers()]
    assert daemon.api.status().driver == "docker"


@pytest.mark.long
def test_what_an_operator_writes_is_in_its_log(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1).replace("import os", "print('hello from a container')"))

    wait_until(lambda: any(line.text == "hello from a container" and line.at for line in daemon.api.logs("d")), 10, "the line")


@pytest.mark.long
def test_without_its_manager_a_hung_container_is_removed_after_the_grace(
    docker: Docker, runtime_image: str, home_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    home_daemon.start("--driver", "docker", "--warm", "1", "--heartbeat-grace-ms", "1500")
    home_daemon.deploy("import time\n" + add(1).replace("return", "time.sleep(600)\n    return"))
    caller = Lane(home_daemon.api, "d")
    caller.send([1])
    home_daemon.kill()

    wait_until(lambda: not docker.left(), 30, "all containers to be gone")
    wait_until(lambda: home_daemon.processes() == [], 20, "servers and watchdog to stop")
    caller.conn.close()


def test_a_runtime_image_that_is_not_there_is_said_at_the_start_with_the_remedy(
    home: Path, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    daemon = Daemon(home)
    home.parent.mkdir(exist_ok=True)
    daemon.start("--driver", "docker", "--warm", "1", "--runtime-image", "nobody/has:this", wait=False)
    assert daemon.process is not None

    assert daemon.process.wait(bound(30)) == 1
    assert "nobody/has:this" in daemon.log() and "docker/runtime.sh" in daemon.log()
