"""An operator finds the environment that its code expects, and no trace of the runtime, wherever it runs."""

from __future__ import annotations

import ast
import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node_manager.config import InstanceConfig
from tests.cli.conftest import Shell
from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.support.docker_daemon import Daemon as Docker
from tests.support.finds import FINDS, RAISES, SCHEMAS
from tests.support.selection import long
from udo_interface import connect
from udo_protocol.errors import UsageError

Ask = Callable[..., dict[str, Any]]
Open = Callable[..., Lane]


def of_trial(tmp_path: Path, questions: list[str], env: dict[str, str], **manifest: Any) -> dict[str, Any]:
    """Ask the operator in a trial with `udo test`."""
    folder = tmp_path / "finds"
    folder.mkdir(exist_ok=True)
    (folder / "op.py").write_text(FINDS)
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in manifest.items())
    (folder / "operator.toml").write_text(
        f'name = "finds"\nversion = "1"\nentry = "op:run"\n{more}[input]\nasked = "string"\n[output]\nanswer = "string"\n'
    )
    (folder / "events.json").write_text(json.dumps([{"asked": q} for q in questions]))
    given = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    answers = Shell(tmp_path / "home")("test", folder, "--json", *given).json["answers"]
    return {q: ast.literal_eval(a["answer"]) for q, a in zip(questions, answers, strict=True)}


def of_node(daemon: Daemon, questions: list[str], env: dict[str, str], **manifest: Any) -> dict[str, Any]:
    """Ask the operator at an instance on a node."""
    digest = put_image(daemon.home, FINDS, **SCHEMAS, **manifest)
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"env": env}), 30_000)
    got: list[dict[str, Any]] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        for question in questions:
            client.send({"asked": question})
    return {q: ast.literal_eval(a["answer"]) for q, a in zip(questions, got, strict=True)}


CONTAINED = [pytest.param(way, marks=[pytest.mark.long, pytest.mark.docker]) for way in ("docker", "docker, process")]
WAYS = ["trial", long("trial, process"), "node", "node, process", *CONTAINED]


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A function that asks the operator, which runs in one of WAYS."""
    way, own = request.param.partition(", ")[::2]
    manifest = {"isolation": own} if own else {}
    if way == "trial":
        return lambda *asked, **env: of_trial(tmp_path, list(asked), env, **manifest)
    if way == "docker":
        docker: Docker = request.getfixturevalue("docker")
        image = request.getfixturevalue("runtime_image")
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        node = request.getfixturevalue("home_daemon").start("--driver", "docker", "--runtime-image", image)
    else:
        node = request.getfixturevalue("daemon")
    return lambda *asked, **env: of_node(node, list(asked), env, **manifest)


def test_what_an_operator_starts_has_nothing_of_the_runtimes_way_to_end(ask: Ask) -> None:
    found = ask("forked ends", "spawned ends", "forked exits", "forked returns")
    assert found == {"forked ends": -15, "spawned ends": -2, "forked exits": 7, "forked returns": 0}


def test_its_user_has_a_name_and_a_home_and_it_knows_whom_to_trust(ask: Ask) -> None:
    found = ask("user", "home", "authorities")
    assert len(set(found["user"])) == 1 and found["user"][0]
    assert found["home"] and found["authorities"] > 0


def test_in_a_sandbox_it_trusts_whom_the_host_trusts_and_knows_what_ports_are_called(daemon: Daemon) -> None:
    assert of_node(daemon, ["services", "authorities"], {}) == {
        "services": 443,
        "authorities": len(ssl.create_default_context().get_ca_certs()),
    }


def test_a_variable_acts_as_if_its_process_had_been_started_with_it(ask: Ask) -> None:
    found = ask("hours", "local", "hash", TZ="Asia/Tokyo")
    assert (found["hours"], found["local"]) == (9, 9)
    unseeded = subprocess.run([sys.executable, "-c", "print(hash('card'))"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
    assert found["hash"] == int(unseeded.stdout)


@pytest.mark.long
def test_text_hashes_alike_in_all_processes_of_a_deployment(tmp_path: Path, daemon: Daemon) -> None:
    node = of_node(daemon, ["hash"], {})
    assert of_trial(tmp_path, ["hash"], {}) == node == of_trial(tmp_path, ["hash"], {}, isolation="process")
    assert of_trial(tmp_path, ["hash"], {"PYTHONHASHSEED": "7"}) != node


@pytest.mark.parametrize("kind", ["env", "secrets"])
@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "GCONV_PATH", "OPENSSL_CONF"])
def test_a_variable_that_would_reach_what_confines_it_is_refused(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"variable {name} makes programs load other code"):
        InstanceConfig.parse({kind: {"PLAIN": "1", name: "/own/code"}})


TALKS = """
import subprocess, sys
from udo_runtime import operator
@operator
def run(batch):
    for n in range(200):
        sys.stdout.write(("x" * 1023 + "\\n") * 1024)
    subprocess.run(["sh", "-c", "yes | head -c 200000000"], check=True)
    return {"b": batch.column("a")}
"""
# Like a model that is loaded once and used by forked workers.
SHARES = """
import os, time
from udo_runtime import operator
model = bytearray(os.urandom(1 << 20)) * 200
@operator
def run(batch):
    children = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            sum(model[::4096])
            time.sleep(3)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return {"b": batch.column("a")}
"""


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["none", long("process")])
def test_whatever_is_printed_by_it_or_what_it_starts_nobody_fails_for_it(daemon: Daemon, lane: Open, isolation: str) -> None:
    daemon.deploy(TALKS, **({"isolation": isolation} if isolation != "none" else {}))
    assert lane().ask(1) == 1
    assert daemon.slot().restarts == 0


@pytest.mark.long
def test_memory_that_processes_share_counts_once(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(SHARES, limits={"memory_mb": 500})
    assert lane().ask(1) == 1
    assert daemon.slot().restarts == 0


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_whatever_user_code_raises_is_one_events_failure(daemon: Daemon, isolation: str) -> None:
    digest = put_image(daemon.home, RAISES, entry="op:Run", **({"isolation": isolation} if isolation != "none" else {}))
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"policy": "dead-letter"}), 30_000)
    got: list[Any] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        for a in (1, *range(13, 18), 2):
            client.send({"a": a})
    letters = {json.loads(d.event)["a"]: d.reason for d in daemon.api.dead_letters("d", whole=True)}
    assert sorted(letters) == list(range(13, 18)), got
    assert [e["b"] for e in got] == [1, 2]
    assert daemon.slot().restarts == 0
    assert "CancelledError: as of a cancelled task" in letters[13] and "SystemExit: as of argparse" in letters[15]
