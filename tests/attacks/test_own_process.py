"""Attacks by an operator in a process of its own, which knows the sockets, keys, passwords, files and processes around it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node_manager.drivers.sandbox import PROGRAM
from tests.conftest import require
from tests.node_manager.conftest import Daemon, Lane, add
from tests.support.docker_daemon import Daemon as Docker
from tests.support.selection import long

# Things that an operator must not be able to do: each attack answers what it achieved. Column `a` holds the places to attack.
SPY = """
import json, os, socket
from pathlib import Path
from udo_runtime import operator

a = json.loads(os.environ["A"])
MEMORY = "/memfd:udo-operator"

def works(step):
    try:
        step()
    except OSError:
        return False
    return True

def connects(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)

def says(path, *commands):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(path)
        for c in commands:
            s.sendall(("\\r\\n".join([f"*{len(c)}", *(f"${len(w)}\\r\\n{w}" for w in c)]) + "\\r\\n").encode())
            print(c[0], s.recv(1000))

def found():
    # the servers' sockets and the node manager's
    yield from (f"socket {p}" for p in a["sockets"] if works(lambda: connects(p)))
    # other deployments' keys, and its own slot's
    login = ["AUTH", a["user"], a["password"]]
    yield from (f"key {k}" for k in a["keys"] for p in a["sockets"] if works(lambda: says(p, login, ["GET", k])))
    # passwords, neighbours' files, the engine's own
    yield from (f"file {p}" for p in a["files"] if os.path.lexists(p) or works(lambda: Path(p).read_bytes()))
    for p in a["folders"]:  # what comes of it is seen outside: in a sandbox's own view of them it may write
        works(lambda: (Path(p) / a["mark"]).write_text("x"))
    # neighbours' processes, and its engine
    yield from (f"process {p}" for p in a["pids"] if works(lambda: os.kill(p, 0)))
    yield from (f"memory {p}" for p in a["pids"] if works(lambda: open(f"/proc/{p}/mem", "rb")))
    yield from (f"environment {p}" for p in a["pids"] if works(lambda: open(f"/proc/{p}/environ", "rb").read()))
    # the network, also this machine's
    yield from (f"port {p}" for p in a["ports"] if works(lambda: socket.create_connection(("127.0.0.1", p), 2).close()))
    # what it was given beside its one socket
    yield from (f"variable {n}" for n in os.environ if n.startswith("UDO_") and n not in a["variables"])
    open_files = {int(n): os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
    its_own = ("/proc", "/dev/", "socket:", MEMORY)
    yield from (f"descriptor {where}" for n, where in open_files.items() if n > 2 and not where.startswith(its_own))
    # the memory that it shares with its engine: another size would make the engine fault
    mine = [n for n, where in open_files.items() if where.startswith(MEMORY)]
    yield from (f"shared memory of {size} bytes" for n in mine for size in (0, 1 << 30) if works(lambda: os.ftruncate(n, size)))
    yield from ["shared memory", "no shared memory"][a["shares"] : a["shares"] + 1] * (bool(mine) != a["shares"])
    yield from (f"sockets {n}" for n in [sum(where.startswith("socket:") for where in open_files.values())] if n != 1)

@operator
def run(batch):
    return {"b": [json.dumps(list(found()))] * batch.num_rows}
"""


@pytest.fixture(params=["process", long("docker")])
def daemon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A running node manager, with each driver."""
    options: list[str] = []
    if request.param == "docker":  # requested before the home: its check for left-overs then runs after the node manager has stopped
        docker: Docker = request.getfixturevalue("docker")
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        options = ["--driver", "docker", "--runtime-image", request.getfixturevalue("runtime_image")]
    elif shutil.which(PROGRAM) is None:
        require("bubblewrap", "apt-get install -y --no-install-recommends bubblewrap")
    stopped: Daemon = request.getfixturevalue("home_daemon")
    return stopped.start(*options)


def test_nothing_of_the_node_is_in_reach(daemon: Daemon, lane: Callable[..., Lane], request: pytest.FixtureRequest) -> None:
    shares = request.node.callspec.params["daemon"] == "process"
    daemon.deploy(add(1), name="neighbour")
    neighbour = next(s for s in daemon.api.status().slots if s.deployment == "neighbour")
    known = json.loads((daemon.home / "servers" / "access.json").read_text())
    run, instances = daemon.home / "run", daemon.home / "instances"
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        told: dict[str, Any] = {
            "sockets": [str(p) for p in (*run.iterdir(), daemon.home / "node.sock") if p.is_socket()],
            "keys": ["udo:neighbour:0:emitted", "udo:d:0:emitted", "udo:heartbeat"],
            "user": "manager",
            "password": known["manager"],
            "files": [str(p) for p in daemon.home.rglob("*") if p.is_file() and "runtime" not in p.parts],
            "folders": [*map(str, (daemon.home, run, instances, instances / neighbour.instance)), "/", "/usr", "/etc", "/var/tmp", "."],
            "mark": f"spy-{daemon.home.parent.name}",
            "pids": [neighbour.pid, os.getpid(), daemon.process.pid],  # type: ignore[union-attr]
            "ports": [tcp.getsockname()[1]],
            "variables": ["UDO_OPERATOR_SOCKET", "UDO_DIRECTORY", "UDO_PYTHONPATH", *(["UDO_OPERATOR_SHARED"] if shares else [])],
            "shares": shares,
        }
        assert len(told["sockets"]) >= 3 and len(told["files"]) > 5
        daemon.deploy(SPY, output={"b": "string"}, config_json=json.dumps({"env": {"A": json.dumps(told)}}), isolation="process")
        assert json.loads(lane().ask(1, 60)) == []
        there = [daemon.home, *(Path(p) for p in told["folders"] if p.startswith("/"))]
        assert [p for p in there if (p / told["mark"]).exists()] == list(daemon.home.rglob(told["mark"])) == []
