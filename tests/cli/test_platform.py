"""The command line against a real registry and a real node manager: push, deploy, update, rollback, status, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, require, wait_until
from tests.support.asking import ask
from tests.support.selection import long
from udo_cli.commands.node import CAPABILITIES

Operators = Callable[..., Path]
OPEN = """
import socket, urllib.request
from udo_runtime import Operator
class run(Operator):
    def open(self, ctx):
        {call}
"""


def test_up_again_starts_nothing(platform: Shell) -> None:
    again = platform("up", "--json").json
    assert again["started"] == []
    assert again["registry"].startswith("http://127.0.0.1:")


def test_an_operator_is_pushed_deployed_updated_and_rolled_back(platform: Shell, operator: Operators) -> None:
    first = platform("push", operator("main", "1", plus=1), "--json").json
    platform("push", operator("main", "2", plus=100))
    assert platform("deploy", "main@1", "--json").json["digest"] == first["digest"]
    assert ask(platform, "main", 1) == 2

    updated = platform("update", "main", "2", "--json")
    assert updated.json["version"] == "2"
    assert updated.json["took_ms"] > 0
    assert "ready" in updated.err
    assert ask(platform, "main", 1) == 101

    assert platform("rollback", "main", "--json").json["digest"] == first["digest"]
    assert ask(platform, "main", 1) == 2

    actions = [e["action"] for e in platform("registry", "audit", "--deployment", "main", "--json").json]
    assert {"deploy", "update", "rollback"} <= {a.partition(".")[0] for a in actions}
    platform("undeploy", "main")
    assert platform("inspect", "main", "--json").json["version"] == "2"  # the operator is still there
    assert "main" not in [d["name"] for d in platform("ls", "deployments", "--json").json["deployments"]]


@pytest.mark.long
def test_a_deployment_gets_more_slots_and_fewer_and_every_view_says_how_many(platform: Shell, operator: Operators) -> None:
    platform("push", operator("wide"))
    assert platform("deploy", "wide", "--slots", "2", "--json").json["slots"] == 2
    assert platform("scale", "wide", "3").out.strip() == "wide: 3 slots on each node"
    assert ask(platform, "wide", 1) == 2
    status = platform("status", "--json").json
    owners = [s for s in status["node"]["slots"] if s["deployment"] == "wide"]
    assert [s["state"] for s in owners] == ["owner"] * 3 and len({s["pid"] for s in owners}) == 3
    shown = platform("status").out.splitlines()
    columns = next(line for line in shown if line.startswith("DEPLOYMENT")).split()
    assert next(line for line in shown if line.startswith("wide ")).split()[columns.index("SLOTS")] == "3"
    assert "slots on each node" in platform("inspect", "wide").out
    rates = platform("top", "--once", "--json").json["slots"]
    assert len({s["slot"] for s in rates if s["deployment"] == "wide"}) == 3
    with urllib.request.urlopen(status["node"]["metrics_address"], timeout=bound(30)) as reply:
        metrics = reply.read().decode()
    assert metrics.count('udo_restarts_total{deployment="wide",slot=') == 3

    assert platform("scale", "wide", "1", "--json").json["slots"] == 1
    assert "64" in platform("scale", "wide", "65", code=2).err
    assert "no deployment 'wider'" in platform("scale", "wider", "2", code=3).err
    details = [e["detail"] for e in platform("registry", "audit", "--deployment", "wide", "--json").json if e["action"] == "scale"]
    assert sorted(details) == ["2 to 3 slots", "3 to 1 slots"]


@pytest.mark.long
def test_a_deployments_load_is_explained_decided_about_journalled_and_metered(platform: Shell, operator: Operators) -> None:
    platform("push", operator("sized"))
    assert "slots on each node by policy fuzzy" not in platform("deploy", "sized", "--mode", "auto", "--least", "2", "--most", "3").out
    owners = lambda: [s for s in platform("status", "--json").json["node"]["slots"] if s["deployment"] == "sized"]  # noqa: E731
    wait_until(lambda: len(owners()) == 2, 60, "the least number of slots")
    assert ask(platform, "sized", 1) == 2
    assert "by policy fuzzy, 2 to 3" in platform("inspect", "sized").out

    wait_until(lambda: platform("explain", "sized", "--json").json["load"] is not None, 60, "figures")
    assert "scale in below 20, prepare from 60, scale out from 75" in platform("explain", "sized").out
    shown = platform("events", "sized").out
    assert "scale out from 1 to 2" in shown and "at least 2" in shown and "done" in shown
    assert platform("events", "sized", "--replay", "--json").json["same"] is True
    wait_until(lambda: [d["events_in"] for d in platform("usage", "sized", "--json").json["deployments"]] == [1], 60, "one event")
    assert "sized" in platform("usage").out

    said = platform("scale", "sized", "--mode", "auto", "--policy", "ds2", "--setting", "target_use=0.5").out
    assert said.strip() == "sized: 2 to 3 slots on each node by policy ds2; see: udo events sized"
    assert platform("scale", "sized", "--mode", "advise").out.strip() == "sized: 1 slot on each node, mode advise"
    assert "has no setting 'speed'" in platform("scale", "sized", "--setting", "speed=1", code=2).err
    assert "expected a number of slots, or of replicas (--replicas), or a mode" in platform("scale", "sized", code=2).err
    details = [e["detail"] for e in platform("registry", "audit", "--deployment", "sized", "--json").json if e["action"] == "scale"]
    assert details == ["mode advise, policy ds2, least 2, most 3", "mode auto, policy ds2, least 2, most 3"]


@pytest.mark.long
def test_the_same_version_again_is_fine_and_other_content_is_refused(platform: Shell, operator: Operators) -> None:
    first = platform("push", operator("twice", "1", plus=1), "--json")
    again = platform("push", operator("twice", "1", plus=1), "--json")
    assert again.json["digest"] == first.json["digest"]
    assert "is there already" in again.err
    assert "twice" in platform("push", operator("twice", "1", plus=2), code=4).err


@pytest.mark.long
def test_a_push_needs_the_token(platform: Shell, operator: Operators) -> None:
    url = platform("up", "--json").json["registry"]
    folder = operator("open", "1")
    assert "token" in platform("push", folder, code=7, UDO_REGISTRY=url, UDO_TOKEN="wrong").err
    elsewhere = {"UDO_HOME": str(folder), "UDO_REGISTRY": url}
    assert "token" in platform("push", folder, code=7, **elsewhere).err
    assert "does not exist" in platform("push", folder, code=7, **elsewhere, UDO_TOKEN_FILE=str(folder / "none")).err
    platform("push", folder, **elsewhere, UDO_TOKEN_FILE=str(platform.home / "registry" / "token"))


def test_configuration_reaches_the_operator_and_a_secret_is_shown_nowhere(platform: Shell, operator: Operators, tmp_path: Path) -> None:
    (tmp_path / "plus.txt").write_text("40")
    source = (
        "import os, logging\nfrom udo_runtime import operator\nlogging.getLogger('t').info('loaded with %s', os.environ['E'])\n"
        "@operator\ndef run(b):\n    n = int(open('plus').read()) + int(os.environ['E']) + (os.environ['S'] == 'hunter2')\n"
        "    return {'b': [a + n for a in b.column('a').to_pylist()]}\n"
    )
    given = ("--env", "E=100", "--secret", "S", "--file", f"{tmp_path / 'plus.txt'}:plus")
    platform("push", operator("conf", "1", source=source), *given, stdin="hunter2\n")
    shown = [platform("deploy", "conf", *given, stdin="hunter2\n", code=0)]
    assert ask(platform, "conf", 1) == 142
    shown += [
        platform(*words)
        for words in (
            ("inspect", "conf", "--json"),
            ("inspect", "conf"),
            ("status", "--json"),
            ("ls", "--json"),
            ("logs", "conf"),
            ("registry", "audit"),
        )
    ]
    assert not any("hunter2" in done.out + done.err for done in shown)
    assert json.loads(shown[1].out)["secrets"] == ["S"]
    assert "loaded with 100" in platform("logs", "conf").out
    for log in platform.home.rglob("log"):
        assert not log.is_file() or b"hunter2" not in log.read_bytes()
    platform("undeploy", "conf")


@pytest.mark.long
def test_an_update_changes_a_variable_and_a_file_without_a_new_version(platform: Shell, operator: Operators, tmp_path: Path) -> None:
    (tmp_path / "plus.txt").write_text("40")
    source = (
        "import os\nfrom udo_runtime import operator\n@operator\ndef run(b):\n"
        "    n = int(open('plus').read()) + int(os.environ.get('E', '0')) + int(os.environ.get('S', '0'))\n"
        "    return {'b': [a + n for a in b.column('a').to_pylist()]}\n"
    )
    platform("push", operator("live", "1", source=source), "--no-samples")
    platform("deploy", "live", "--env", "E=100", "--secret", "S", "--file", f"{tmp_path / 'plus.txt'}:plus", S="1000")
    assert ask(platform, "live", 1) == 1141

    done = platform("update", "live", "--env", "E=200")
    assert "live@1 answers after" in done.out and "variable E" in done.err
    assert ask(platform, "live", 1) == 1241
    (tmp_path / "plus.txt").write_text("50")
    platform("update", "live", "--secret", "S", S="2000")
    assert ask(platform, "live", 1) == 2241
    platform("update", "live", "--file", f"{tmp_path / 'plus.txt'}:plus", "--unset", "S")
    assert ask(platform, "live", 1) == 251
    assert platform("inspect", "live", "--json").json["secrets"] == []

    assert "no such variable, secret or file; there are: E, plus" in platform("update", "live", "--unset", "T", code=3).err
    assert "give the VERSION to go to, or --env" in platform("update", "live", code=2).err
    platform("undeploy", "live")


@pytest.mark.long
def test_a_version_that_does_not_fit_is_refused_and_the_old_one_answers_on(platform: Shell, operator: Operators) -> None:
    platform("push", operator("fit", "1"))
    platform("push", operator("fit", "2", output="string"), "--no-samples")
    fails = "import os\nif os.environ.get('UDO_INSTANCE'): raise RuntimeError('not here')\n"
    platform("push", operator("fit", "3", source=fails + _RUN), "--no-samples")
    platform("deploy", "fit@1")
    assert "column 'b': expected int64, got string" in platform("update", "fit", "2", code=4).err
    failed = platform("update", "fit", "3", code=None)
    assert failed.code == 6, failed.err
    assert "not here" in failed.err
    assert ask(platform, "fit", 1) == 2
    platform("undeploy", "fit")


@pytest.mark.long
def test_an_update_that_does_not_get_ready_in_time_is_told_from_one_that_fails(platform: Shell, operator: Operators) -> None:
    platform("push", operator("slow", "1"))
    hangs = "import os, time\nif os.environ.get('UDO_INSTANCE'): time.sleep(15)\n"
    platform("push", operator("slow", "2", source=hangs + _RUN), "--no-samples")
    platform("deploy", "slow@1")
    late = platform("update", "slow", "2", "--wait-s", "1", code=5)
    assert "no report 'ready'" in late.err and "1 keeps serving" in late.err
    assert ask(platform, "slow", 1) == 2
    platform("undeploy", "slow")


_RUN = "from udo_runtime import operator\n@operator\ndef run(b):\n    return {'b': b.column('a')}\n"


def test_a_deployment_that_cannot_load_is_told_at_once_with_its_traceback(platform: Shell, operator: Operators) -> None:
    unfit = operator("unfit", "1", source="import os\nif os.environ.get('UDO_INSTANCE'): raise RuntimeError('no luck')\n" + _RUN)
    platform("push", unfit, "--no-samples")
    done = platform("deploy", "unfit", code=6)
    assert "no luck" in done.err
    platform("undeploy", "unfit")


def test_unknown_names_are_not_found(platform: Shell) -> None:
    for words in (
        ("deploy", "nobody"),
        ("update", "nobody", "2"),
        ("rollback", "nobody"),
        ("undeploy", "nobody"),
        ("inspect", "nobody"),
        ("logs", "nobody"),
    ):
        assert "nobody" in platform(*words, code=3).err
    assert "NAME@VERSION" in platform("inspect", "x@", code=2).err


def test_a_node_says_what_it_keeps_operators_from(platform: Shell) -> None:
    wait_until(lambda: len(platform("node", "capabilities", "--json").json) == 1, 30, "a node that another test has ended to count as away")
    (node,) = platform("node", "capabilities", "--json").json
    shown = platform("node", "capabilities").out
    assert (node["driver"], set(node["capabilities"]) - {"remark"}) == ("process", set(CAPABILITIES))
    for name, text in CAPABILITIES.items():
        line = next(line for line in shown.splitlines() if line.startswith(text))
        assert line.split()[-1] == ("yes" if node["capabilities"][name] else "no")
    assert node["capabilities"]["remark"] in shown


def test_everything_a_script_reads_is_json(platform: Shell, operator: Operators) -> None:
    platform("push", operator("seen", "1"))
    platform("deploy", "seen")
    ask(platform, "seen", 1)
    status = platform("status", "--json").json
    assert status["registry"]["live_nodes"] == 1
    assert [s["state"] for s in status["node"]["slots"] if s["deployment"] == "seen"] == ["owner"]
    listed = platform("ls", "--json").json
    assert "seen" in [o["name"] for o in listed["operators"]]

    def counted() -> int:
        return next(int(s["events_in"]) for s in platform("top", "--once", "--json").json["slots"] if s["deployment"] == "seen")

    wait_until(lambda: counted() == 1, 20, "the instance to publish its counters")
    assert platform("node", "ls", "--json").json[0]["live"]
    for words in (("status",), ("ls",), ("top", "--once"), ("node", "ls"), ("registry", "audit")):
        assert "seen" in platform(*words).out or words == ("node", "ls")
    platform("undeploy", "seen")


@pytest.mark.long
def test_logs_follow_until_ctrl_c(platform: Shell, operator: Operators) -> None:
    platform("push", operator("chatty", "1", body="print('seen', batch.num_rows, flush=True)"))
    platform("deploy", "chatty")
    command = platform.command("logs", "-f", "chatty")
    follower = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=platform.environment(PYTHONUNBUFFERED="1")
    )
    try:
        ask(platform, "chatty", 1)
        assert follower.stdout is not None
        assert "seen 1" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=bound(20))
        assert follower.returncode == 130
        assert "Traceback" not in err
    finally:
        follower.kill()
        follower.communicate()
    platform("undeploy", "chatty")


@pytest.mark.long
def test_a_server_that_does_not_answer_makes_the_status_fail(platform: Shell) -> None:
    pid = next(s["pid"] for s in platform("status", "--json").json["node"]["servers"] if s["role"] == "state")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: platform("status", code=None).code == 5, 60, "the status to fail")
        assert "has not answered for" in platform("status", code=5).err
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: platform("status", code=None).code == 0, 60, "the status to be well again")


@pytest.mark.long
def test_a_network_that_the_sandbox_refuses_is_told_as_the_reason(platform: Shell, operator: Operators) -> None:
    if not platform("status", "--json").json["registry"]["nodes"][0]["capabilities"]["isolates_network"]:
        require("a sandbox", "apt-get install -y --no-install-recommends bubblewrap")
    for n, call in enumerate(("urllib.request.urlopen('http://127.0.0.1:9')", "socket.create_connection(('example.org', 80))")):
        platform("push", operator(f"net{n}", source=OPEN.format(call=call)), "--no-samples")
        error = platform("deploy", f"net{n}", code=6).err
        assert "the node's sandbox gives operators no network: docs/sandbox.md" in error
        platform("undeploy", f"net{n}")


@pytest.mark.parametrize("words", [long(("registry",)), ("node",)])
def test_daemons_run_in_the_foreground_until_ctrl_c(platform: Shell, words: tuple[str, ...], tmp_path: Path) -> None:
    other = Shell(platform.home / f"own-{words[0]}", {"UDO_REGISTRY": platform("up", "--json").json["registry"]})
    other.home.mkdir()
    extra = () if words == ("registry",) else ("--name", "second", "--token-file", str(platform.home / "registry" / "token"))
    log = (tmp_path / "log").open("wb")
    daemon = subprocess.Popen(other.command(*words, *extra), env=other.environment(), stdout=log, stderr=log, start_new_session=True)
    ready = other.home / ("registry/address" if words == ("registry",) else "node/node.sock")
    try:
        wait_until(ready.exists, 60, f"{words} ready")
        os.killpg(daemon.pid, signal.SIGINT)
        assert daemon.wait(bound(30)) == 0, (tmp_path / "log").read_text()
    finally:
        daemon.kill()
        daemon.wait()
        log.close()
    wait_until(lambda: not other.running(), 20, "the end of what the daemon had started")


def test_without_a_platform_every_command_says_how_to_start_one(tmp_path: Path, operator: Operators) -> None:
    away = Shell(tmp_path / "nothing")
    folder = operator()
    for words in (("ls",), ("push", folder), ("deploy", "x"), ("logs", "x"), ("top", "--once"), ("status",), ("node", "ls")):
        assert "udo up" in away(*words, code=5).err
    assert "nothing was running" in away("down").out
    assert "udo up" in away("ls", code=5, UDO_REGISTRY="http://127.0.0.1:9").err


@pytest.mark.long
def test_inspect_is_readable(platform: Shell, operator: Operators) -> None:
    platform("push", operator("seen", "1"))
    platform(
        "deploy",
        "seen",
        "--env",
        "LIMIT=7",
        "--secret",
        "KEY",
        "--on-error",
        "dead-letter",
        "--retries",
        "2",
        "--poll-us",
        "500",
        KEY="hunter2",
    )

    deployment, version = (platform("inspect", name).out for name in ("seen", "seen@1"))

    for said in (
        "DEPLOYMENT seen",
        "serves",
        "seen@1",
        "on error",
        "dead-letter, 2 retries",
        "LIMIT=7",
        "KEY",
        "INPUT",
        "int64",
        "answering",
    ):
        assert said in deployment, said
    assert "hunter2" not in deployment and not deployment.lstrip().startswith("{")
    for said in ("OPERATOR seen@1", "op:run", "answer_timeout_s=2", "INPUT", "OUTPUT", "int64", "LAYER", "code", "USED BY", " B"):
        assert said in version, said
    assert platform("inspect", "seen", "--json").json["limits"] == {"retries": 2, "backoff_ceiling_us": 500}
    platform("undeploy", "seen", "--drop-state")


@pytest.mark.long
def test_a_shell_completes_deployments_operators_and_versions(platform: Shell, operator: Operators) -> None:
    for version in ("1", "2"):
        platform("push", operator("completed", version))
    platform("deploy", "completed@1", "--name", "complete-as")

    def offered(*words: str, **env: str) -> list[str]:
        asked = {"_UDO_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("udo", *words)), "COMP_CWORD": str(len(words)), **env}
        return [line.partition(",")[2] for line in platform(**asked).out.splitlines() if line]

    for command in ("update", "rollback", "logs", "undeploy", "record"):
        assert offered(command, "complete-") == ["complete-as"]
    assert offered("state", "show", "complete-") == offered("dead", "ls", "complete-") == ["complete-as"]
    assert offered("deploy", "compl") == ["completed"]
    assert offered("deploy", "completed@") == ["completed@2", "completed@1"]
    assert offered("inspect", "compl") == ["complete-as", "completed"]
    assert offered("update", "complete-as", "2") == ["2"]
    platform("update", "complete-as", "2")
    assert offered("rollback", "complete-as", "1") == ["1"]
    assert offered("update", "compl", UDO_REGISTRY="http://127.0.0.1:9") == []
    platform("undeploy", "complete-as")


@pytest.mark.long
def test_a_node_manager_that_was_killed_is_told_in_words(udo: Shell) -> None:
    own = Shell(udo.home / "own")
    own("up")
    pid = json.loads((own.home / "node" / "process.json").read_text())["pid"]
    psutil.Process(pid).kill()
    wait_until(lambda: not psutil.pid_exists(pid), 10, "end of the node manager")
    error = own("logs", "x", code=5).err
    assert "nothing listens on that socket" in error and "udo up" in error and "addresses" not in error
    own("down")


@pytest.mark.long
def test_down_leaves_nothing_running_even_after_the_node_manager_was_killed(operator: Operators, udo: Shell) -> None:
    own = Shell(udo.home / "own")
    own("up")
    own("push", operator("t", "1"))
    own("deploy", "t")
    pid = json.loads((own.home / "node" / "process.json").read_text())["pid"]
    psutil.Process(pid).kill()
    wait_until(lambda: not psutil.pid_exists(pid), 10, "end of the node manager")
    assert own.running()
    assert "registry" in own("down", "--json").json["stopped"]
    assert own.running() == []
    assert own("up", "--json").json["started"] == ["registry", "node"]  # deployments come back
    wait_until(lambda: own("ls", "deployments", "--json").json["deployments"][0]["nodes"][0]["state"] == "answering", 60, "t answering")
    own("down")
    assert own.running() == []


def test_ctrl_c_during_up_leaves_nothing_running(udo: Shell) -> None:
    own = Shell(udo.home / "interrupted")
    starting = subprocess.Popen(own.command("up"), env=own.environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert starting.stderr is not None
    while "node manager" not in starting.stderr.readline():
        pass
    os.killpg(starting.pid, signal.SIGINT)
    assert starting.wait(bound(60)) == 130
    assert "interrupted" in starting.stderr.read()
    starting.stderr.close()
    assert own.running() == []


@pytest.mark.long
def test_a_home_too_deep_for_sockets_is_told(udo: Shell) -> None:
    deep = Shell(udo.home / ("x" * 100))
    assert "too long for a Unix socket" in deep("up", code=None).err
    assert deep.running() == []
