"""The messages and exit codes of commands while parts are away. Two node managers and a registry, all real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.verification import pushed
from benchmarks.verification.hostile_layers import HOSTILE
from tests.cli.conftest import Shell
from tests.conftest import bound, wait_until
from tests.support.asking import ask
from udo_cli.exits import ExitCode
from udo_cli.main import cli
from udo_protocol.node.api import connect_node
from udo_protocol.registry.api import Registry

pytestmark = pytest.mark.long

Operators = Callable[..., Path]
START_S = 60


class Second:
    """A second node manager, n2, under the home of the first one's platform."""

    def __init__(self, platform: Shell) -> None:
        self.home, self.url = platform.home / "n2", json.loads(udo(platform, "up", "--json").stdout)["registry"]
        self.token = platform.home / "registry" / "token"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        arguments = ["--home", str(self.home), "--node", "n2", "--registry", self.url, "--token-file", str(self.token)]
        with (self.home.parent / "n2.log").open("ab") as log:
            command = [sys.executable, "-m", "node_manager", *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: self.live(), START_S, "n2 to be live")

    def kill(self) -> None:
        """kill -9; its servers and instances go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(bound(10))
        connect_node(self.home / "node.sock").close()

    def live(self) -> bool:
        """Return whether the registry counts it as live."""
        with Registry(self.url) as api:
            return any(n["live"] for n in api.nodes() if n["node"] == "n2")


@pytest.fixture(scope="module")
def second(platform: Shell) -> Iterator[Second]:
    """A second node; it is stopped at the end with all that it started."""
    node = Second(platform)
    try:
        yield node
    finally:
        if node.process is not None and node.process.poll() is None:
            node.process.terminate()
            node.process.wait(bound(40))


def udo(platform: Shell, *args: str | Path, code: int = 0, **env: str) -> Result:
    """Run the command in this process, at a tenth of the cost of a process of its own."""
    given = {**{k: None for k in os.environ if k.startswith("UDO_")}, "UDO_HOME": str(platform.home), **env}
    done = CliRunner().invoke(cli, [*map(str, args)], prog_name="udo", env=given)
    assert done.exit_code == code, f"udo {args} ended with {done.exit_code}:\n{done.output}"
    return done


def _pid(platform: Shell, part: str) -> int:
    return int(json.loads((platform.home / part / "process.json").read_text())["pid"])


def test_an_update_after_the_registry_was_killed_and_started_again_is_served(platform: Shell, operator: Operators) -> None:
    for version in ("1", "2"):
        udo(platform, "push", operator("back", version, plus=int(version)))
    udo(platform, "deploy", "back@1")
    before = json.loads(udo(platform, "up", "--json").stdout)["registry"]
    os.kill(_pid(platform, "registry"), signal.SIGKILL)

    again = platform("up", "--json").json
    assert again["started"] == ["registry"] and again["registry"] == before

    done = json.loads(udo(platform, "update", "back", "2", "--json").stdout)
    assert done["nodes"] == [socket.gethostname()] and done["missed"] == []
    assert ask(platform, "back", 0) == 2
    udo(platform, "undeploy", "back")


def test_where_the_registry_must_take_another_port_its_node_follows(platform: Shell, operator: Operators) -> None:
    udo(platform, "push", operator("moved", "1", plus=1))
    udo(platform, "deploy", "moved@1")
    before = json.loads(udo(platform, "up", "--json").stdout)["registry"]
    pid = json.loads(udo(platform, "status", "--json").stdout)["node"]["slots"][0]["pid"]
    (platform.home / "registry" / "port").unlink()  # as if its port were taken
    os.kill(_pid(platform, "registry"), signal.SIGKILL)

    assert platform("up", "--json").json["registry"] != before
    assert udo(platform, "undeploy", "moved").exit_code == 0
    status = json.loads(udo(platform, "status", "--json").stdout)
    assert status["registry"]["live_nodes"] == 1 and status["problems"] == []
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the node to take the deployment away")


def test_a_node_that_is_away_is_named_wherever_it_counts(platform: Shell, second: Second, operator: Operators) -> None:
    here = socket.gethostname()
    for version in ("1", "2", "3"):
        udo(platform, "push", operator("two", version, plus=int(version)))
    udo(platform, "deploy", "two@1")
    both = json.loads(udo(platform, "node", "ls", "--json").stdout)
    assert {n["address"] for n in both} == {f"{here}:{platform.home / 'node' / 'node.sock'}", f"{here}:{second.home / 'node.sock'}"}
    assert f"(on {here} only)" in udo(platform, "node", "ls").stdout
    elsewhere = {"UDO_HOME": str(platform.home / "nothing"), "UDO_REGISTRY": second.url}
    status = udo(platform, "status", **elsewhere)
    assert "n2" in status.stdout and here in status.stdout and "no node manager" not in status.output
    assert json.loads(udo(platform, "update", "two", "2", "--json").stdout)["nodes"] == sorted([here, "n2"])

    udo(platform, "deploy", "two@2", "--name", "kept", "--on-error", "dead-letter")

    second.kill()
    # n2's last heartbeat is a few seconds old: a registry that counted a node as live for half a minute would fail here.
    wait_until(lambda: not second.live(), 20, "n2 to count as away")

    updated = udo(platform, "update", "two", "3")
    assert "two@3 answers after" in updated.stdout and f"on {here}, NOT on n2: away" in updated.stdout
    told = json.loads(udo(platform, "rollback", "two", "--json").stdout)
    assert (told["nodes"], told["missed"]) == ([here], ["n2"])
    assert "1 answering, 1 away" in udo(platform, "ls", "deployments").stdout
    refused = udo(platform, "undeploy", "kept", code=4)
    assert "would delete its data: node n2 is away since" in refused.output and "use --drop-state" in refused.output
    udo(platform, "undeploy", "kept", "--drop-state")
    for env in ({}, elsewhere):
        status = udo(platform, "status", code=5, **env)
        assert "away since" in status.stdout and f"node n2 ({here}:{second.home / 'node.sock'}) is away since" in status.stderr
    shown = json.loads(udo(platform, "status", "--json", code=5).stdout)["registry"]["deployments"]
    (state,) = [n for d in shown for n in d["nodes"] if n["node"] == "n2"]
    assert state["state"] == "away" and state["away_since"]
    assert "not asked: node n2: away since" in udo(platform, "state", "ls").stderr

    second.start()
    wait_until(lambda: "2 answering" in udo(platform, "ls", "deployments").stdout, START_S, "n2 to answer again")
    assert udo(platform, "status").exit_code == 0
    udo(platform, "undeploy", "two")


def test_a_node_of_another_registry_is_not_taken_for_one_that_has_its_socket_at_the_same_path(
    platform: Shell, operator: Operators, tmp_path: Path
) -> None:
    udo(platform, "push", operator("mine", "1", plus=1))
    udo(platform, "deploy", "mine@1")
    command = [sys.executable, "-m", "registry", "--data", str(tmp_path / "other"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as other:
        try:
            wait_until(lambda: (tmp_path / "other" / "address").exists(), START_S, "the other registry")
            url = (tmp_path / "other" / "address").read_text().strip()
            with Registry(url, (tmp_path / "other" / "token").read_text().strip()) as api:
                api.heartbeat("elsewhere", address=f"far:{(platform.home / 'node' / 'node.sock').resolve(strict=True)}")
            found = json.loads(udo(platform, "usage", "--json", UDO_REGISTRY=url).stdout)
        finally:
            other.terminate()
    assert [d["deployment"] for d in found["deployments"]].count("mine") == 1  # there may be some of earlier tests
    [silent] = found["not_asked"]
    assert "node elsewhere: it is on another host" in silent
    udo(platform, "undeploy", "mine")


def test_status_ends_with_the_code_of_what_is_dead(platform: Shell, operator: Operators) -> None:
    raises = "import os\nif os.environ.get('UDO_INSTANCE'): raise RuntimeError('no luck')\n"
    udo(platform, "push", operator("dud", "1", source=raises + _RUN), "--no-samples")
    udo(platform, "deploy", "dud", code=6)
    status = udo(platform, "status", code=6)
    assert "dud fails on node" in status.stderr and "no luck" in status.stdout
    assert json.loads(udo(platform, "status", "--json", code=6).stdout)["problems"]
    udo(platform, "undeploy", "dud")
    assert udo(platform, "status").exit_code == 0
    assert "no such socket" in udo(platform, "status", code=5, UDO_NODE=str(platform.home / "typo.sock")).stderr


def test_up_says_what_was_cut_off_a_damaged_state_file_and_status_goes_on_saying_it(platform: Shell) -> None:
    platform("down")
    file = platform.home / "node" / "servers" / "state" / "appendonlydir" / "appendonly.aof.1.incr.aof"
    with file.open("ab") as writes:
        writes.write(b"garbage")
    up = platform("up")
    assert f"state server: {file} was unreadable from byte" in up.err and "the last 7 bytes were cut off" in up.err
    assert "the last 7 bytes were cut off" in udo(platform, "status").stdout
    assert "7 bytes" in json.loads(udo(platform, "up", "--json").stdout)["remarks"][0]


_RUN = "from udo_runtime import operator\n@operator\ndef run(b):\n    return {'b': b.column('a')}\n"


def test_a_refused_version_is_named_by_deploy_status_and_inspect(platform: Shell, tmp_path: Path) -> None:
    why = "has the size '-1536'"
    url, token = platform("up", "--json").json["registry"], (platform.home / "registry" / "token").read_text().strip()
    with Registry(url, token=token, user="tests") as api:
        pushed._push(api, "1", HOSTILE["negative_size"][1](), tmp_path / "layer")
    try:
        assert why in platform("deploy", pushed.OPERATOR, code=ExitCode.REFUSED).err
        status = platform("status", code=None)
        assert f"{pushed.OPERATOR} is refused on node" in status.err and why in status.err and status.code == ExitCode.OPERATOR
        assert why in platform("inspect", pushed.OPERATOR).out
    finally:
        platform("undeploy", pushed.OPERATOR)
    assert why not in platform("status", code=None).err
