"""An operator finds the environment that its code expects, and no trace of the runtime, wherever it runs."""

from __future__ import annotations

import ast
import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node_manager.config import InstanceConfig
from tests.cli.conftest import Shell
from tests.conftest import bound
from tests.support.docker_daemon import Daemon as Docker
from tests.support.finds import FINDS, RAISED, RAISES, SCHEMAS
from tests.support.places import Node, Place, Trial, python
from tests.support.selection import long
from udo_protocol.errors import UsageError

Ask = Callable[..., dict[str, Any]]
CONTAINED = [pytest.param(way, marks=[pytest.mark.long, pytest.mark.docker]) for way in ("docker", "docker, process")]
WAYS = ["trial", long("trial, process"), "node", "node, process", *CONTAINED]
NUMBERS = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}}


@dataclass(frozen=True)
class Way:
    """A place in which Python operators run, with the manifest entries for it."""

    place: Place
    folder: Path
    manifest: dict[str, str]

    def answers(self, source: str, events: list[dict[str, Any]], env: dict[str, str] | None = None, **manifest: Any) -> list[Any]:
        return self.place.answers(python(self.folder, source), events, env, **{**NUMBERS, **self.manifest, **manifest})

    def failures(self, source: str, good: dict[str, Any], bad: list[dict[str, Any]], **manifest: Any) -> list[str]:
        return self.place.failures(python(self.folder, source), good, bad, **{**NUMBERS, **self.manifest, **manifest})

    def ask(self, *questions: str, **env: str) -> dict[str, Any]:
        """Ask the operator FINDS, whose variables are given, and return its answers by question."""
        answers = self.answers(FINDS, [{"asked": q} for q in questions], env, **SCHEMAS)
        return {q: ast.literal_eval(a["answer"]) for q, a in zip(questions, answers, strict=True)}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    """One of WAYS."""
    where, own = request.param.partition(", ")[::2]
    if where == "trial":
        place: Place = Trial(tmp_path / "home")
    elif where == "docker":
        docker: Docker = request.getfixturevalue("docker")
        image = request.getfixturevalue("runtime_image")
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        place = Node(request.getfixturevalue("home_daemon").start("--driver", "docker", "--runtime-image", image))
    else:
        place = Node(request.getfixturevalue("daemon"))
    return Way(place, tmp_path / "operator", {"isolation": own} if own else {})


@pytest.fixture
def ask(way: Way) -> Ask:
    """A function that asks the operator FINDS there."""
    return way.ask


def test_what_an_operator_starts_has_nothing_of_the_runtimes_way_to_end(ask: Ask) -> None:
    ends = {
        "forked ends": -15,
        "forked ends at once": {-15},
        "spawned ends": -2,
        "forked exits": 7,
        "forked returns": 0,
        "child answers": 5,
        "ignored signals": [],
    }
    assert ask(*ends) == ends


def test_an_operator_on_trial_ignores_no_signal_although_the_trial_runs_under_nohup(tmp_path: Path) -> None:
    python(tmp_path / "operator", FINDS)
    asked: list[dict[str, Any]] = [{"asked": "ignored signals"}]
    assert Trial(tmp_path / "home").answers(tmp_path / "operator", asked, **{**NUMBERS, **SCHEMAS}) == [{"answer": "[]"}]
    shell = Shell(tmp_path / "home")
    command = ["sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh", *shell.command("test", tmp_path / "operator", "--json")]
    done = subprocess.run(command, env=shell.environment(), capture_output=True, text=True, timeout=bound(120), check=False)
    assert json.loads(done.stdout)["answers"] == [{"answer": "[]"}], done.stderr


def test_its_user_has_a_name_and_a_home_it_knows_whom_to_trust_and_text_hashes_alike_everywhere(ask: Ask) -> None:
    found = ask("user", "home", "authorities", "hash")
    assert len(set(found["user"])) == 1 and found["user"][0]
    assert found["home"] and found["authorities"] > 0
    assert found["hash"] == hashed("0")


@pytest.mark.parametrize("way", [long("trial"), long("trial, process"), "node", long("node, process")], indirect=True)
def test_it_trusts_whom_the_host_trusts_and_knows_what_ports_are_called(ask: Ask) -> None:
    assert ask("services", "authorities") == {"services": 443, "authorities": len(ssl.create_default_context().get_ca_certs())}


@pytest.mark.parametrize("way", [long("trial"), long("trial, process"), "node", long("node, process"), *CONTAINED], indirect=True)
def test_a_variable_acts_as_if_its_process_had_been_started_with_it(ask: Ask) -> None:
    found = ask("hours", "local", "hash", TZ="Asia/Tokyo", PYTHONHASHSEED="7")
    assert (found["hours"], found["local"]) == (9, 9)
    assert found["hash"] == hashed("7")


def hashed(seed: str) -> int:
    """The hash of FINDS' text in a process that is started with this seed."""
    command = [sys.executable, "-c", "print(hash('card'))"]
    return int(subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("kind", ["env", "secrets"])
@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "GCONV_PATH", "OPENSSL_CONF"])
def test_a_variable_that_would_reach_what_confines_it_is_refused(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"variable {name} makes programs load other code"):
        InstanceConfig.parse({kind: {"PLAIN": "1", name: "/own/code"}})


@pytest.mark.parametrize("value", [0.5, "8", float("inf")])
def test_a_limit_of_a_slot_that_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="limit read_frames: expected a whole number, got"):
        InstanceConfig.parse({"limits": {"read_frames": value}})


TALKS = """
import subprocess, sys
from udo_runtime import operator
@operator
def run(batch):
    for n in range(200):
        sys.stdout.write(("x" * 1023 + "\\n") * 1024)
    subprocess.run(["sh", "-c", f"yes {'y' * 99} | head -c 200000000"], check=True)
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

# Arrow looks for dateutil when it infers a type; the second time it is known that there is none.
LOOKS = """
from importlib.machinery import PathFinder
import pyarrow as pa
from udo_runtime import operator
found, looked = PathFinder.find_spec, []
def look(name, path=None, target=None):
    looked.append(name)
    return found(name, path, target)
@operator
def run(batch):
    pa.array([1.5])
    PathFinder.find_spec = look
    try:
        pa.array([1.5])
    finally:
        PathFinder.find_spec = found
    return {"b": [looked.count("dateutil")]}
"""


@pytest.mark.parametrize("way", [long("trial"), *WAYS[1:]], indirect=True)
def test_a_module_that_arrow_looks_for_again_and_again_is_searched_once(way: Way) -> None:
    assert way.answers(LOOKS, [{"a": 1}]) == [{"b": 0}]


@pytest.mark.long
def test_whatever_is_printed_by_it_or_what_it_starts_nobody_fails_for_it(way: Way) -> None:
    assert way.answers(TALKS, [{"a": 1}]) == [{"b": 1}]


@pytest.mark.long
def test_memory_that_processes_share_counts_once(way: Way) -> None:
    assert way.answers(SHARES, [{"a": 1}], limits={"memory_mb": 500}) == [{"b": 1}]


@pytest.mark.parametrize("way", [long("trial"), *WAYS[1:]], indirect=True)
def test_whatever_user_code_raises_is_one_events_failure(way: Way) -> None:
    reasons = way.failures(RAISES, {"a": 1}, [{"a": a} for a in RAISED], entry="op:Run")
    for reason, said in zip(reasons, RAISED.values(), strict=True):
        assert said in reason
