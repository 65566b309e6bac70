"""`udo update --diff` and `--canary` as users run them, while clients come and go."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, wait_until
from tests.support.attempt import Attempt
from tests.support.traffic import traffic
from udo_protocol.node.api import connect_node

pytestmark = pytest.mark.long

Operators = Callable[..., Path]


@pytest.fixture
def deployed(platform: Shell, operator: Operators, request: pytest.FixtureRequest) -> Iterator[str]:
    """A deployment of version 1 (b = a + 1) of an operator with the further versions 2 (b = a + 2) and 3 (b = a + 1)."""
    name = f"trial{abs(hash(request.node.name)) % 10**6}"
    for version, plus in (("1", 1), ("2", 2), ("3", 1)):
        platform("push", operator(name, version, plus=plus, body=f"version = {version}"))
    platform("deploy", f"{name}@1")
    yield name
    platform("undeploy", name)


def test_a_diff_says_what_differs_writes_it_and_changes_nothing(platform: Shell, deployed: str, tmp_path: Path) -> None:
    with traffic(platform, deployed) as told:
        found = platform("update", deployed, "2", "--diff", "--for", "2s", "-o", tmp_path / "d.jsonl", "--json", code=9).json
        shown = platform("update", deployed, "2", "--diff", "--for", "1s", "-o", tmp_path / "d.parquet", code=9)
        same = platform("update", deployed, "3", "--diff", "--for", "1s", code=0)
    assert {b % 1000 for _, b in told} == {1}

    assert found["outcome"] == "different" and found["frames"] == found["different"] > 0
    assert found["columns"] == {"b": found["rows"]}
    written = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert written == found["differences"] and len(written) == min(found["rows"], 1000)
    assert all(d["served"]["b"] == d["event"]["a"] + 1 and d["new"]["b"] == d["event"]["a"] + 2 for d in written)
    table = pyarrow.parquet.read_table(tmp_path / "d.parquet").to_pylist()
    assert json.loads(table[0]["new"])["b"] == json.loads(table[0]["served"])["b"] + 1
    assert f"{deployed}: 2 gives other answers than 1" in shown.out and "different in b" in shown.out and "frames compared" in shown.err
    assert f"{deployed}: 3 gives the same answers as 1" in same.out
    assert platform("inspect", deployed, "--json").json["version"] == "1"


def test_a_diff_without_events_and_one_that_is_interrupted_have_their_own_exit_codes(platform: Shell, deployed: str) -> None:
    assert "no frame arrived" in platform("update", deployed, "2", "--diff", "--for", "500ms", code=10).out
    command = platform.command("update", deployed, "2", "--diff", "--for", "1h")
    diff = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=platform.environment())
    try:
        running = lambda: any(s["diff"] for s in platform("status", "--json").json["node"]["slots"])  # noqa: E731
        wait_until(running, 30, "the diff to begin")
        assert f"{deployed}: diff with {deployed}@2" in platform("status").out
        assert diff.stderr is not None and any("frames compared" in line for line in diff.stderr), "it has told what it has found"
        diff.send_signal(signal.SIGINT)
        out, err = diff.communicate(timeout=bound(30))
        assert diff.returncode == 130 and "the diff has ended" in err and "Traceback" not in err
        assert out.startswith("DIFF") and "was not compared" in out, "what it has found until then"
        wait_until(lambda: not running(), 30, "the diff to end with its command")
    finally:
        diff.kill()
        diff.communicate()


def test_a_canary_is_promoted_or_rolled_back_and_says_why(platform: Shell, deployed: str, operator: Operators) -> None:
    platform("push", operator(deployed, "4", plus=1, body="if batch.column('a')[0].as_py() % 2000 == 0: import time; time.sleep(0.2)"))
    with traffic(platform, deployed) as told:
        slow = platform("update", deployed, "4", "--canary", "50%", "--for", "1h", "--rollback-if", "p99_ms>100", code=8)
        assert "rolled back after" in slow.out and "p99_ms>100 holds" in slow.out
        few = platform("update", deployed, "2", "--canary", "50%", "--for", "1s", "--min-events", "1000000", "--json", code=8).json
        assert few["version"] == "1" and few["outcome"] == "rolled_back" and "at least 1000000" in few["detail"]
        assert platform("inspect", deployed, "--json").json["version"] == "1"
        passed = platform("update", deployed, "2", "--canary", "25%", "--for", "3s", "--rollback-if", "errors>0", "--json")
        assert passed.json["version"] == "2" and passed.json["outcome"] == "done" and "the canary passed" in passed.err
    assert {b % 1000 for _, b in told} == {1, 2}
    actions = [row["action"] for row in platform("registry", "audit", "--deployment", deployed, "--json").json]
    assert actions.count("update.rolled_back") == 2 and actions[0] == "update.done"


def test_a_canary_outlives_its_command_and_ends_by_rollback(platform: Shell, deployed: str) -> None:
    command = platform.command("update", deployed, "2", "--canary", "10%", "--for", "1h")
    update = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=platform.environment())
    try:
        shares = lambda: [s["canary"] for s in platform("status", "--json").json["node"]["slots"] if s["canary"]]  # noqa: E731
        wait_until(lambda: shares() == ["10 % of new lanes"], 60, "the canary to begin")
    finally:
        update.kill()
        update.communicate()
    status = platform("status")
    assert f"{deployed}: canary of 2: " in status.out and "10 % of new lanes" in status.out
    assert "ends" not in platform("undeploy", deployed, code=4).out

    platform("rollback", deployed)

    wait_until(lambda: not shares(), 30, "the share to end")
    assert platform("inspect", deployed, "--json").json["update"] is None


KEYED = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"b": n {WRONG}}
"""


def test_a_canary_of_a_keyed_operator_is_shown_decides_and_serves_nobody(platform: Shell, operator: Operators) -> None:
    name = "keyedtrial"
    for version, wrong in (("1", ""), ("2", "+ 1"), ("3", "+ 0")):
        directory = operator(name, version, source=KEYED.replace("{WRONG}", wrong))
        toml = (directory / "operator.toml").read_text()
        (directory / "operator.toml").write_text('key = "a"\n' + toml)
        platform("push", directory)
    platform("deploy", f"{name}@1")
    node = connect_node(platform.home / "node" / "node.sock")
    epochs = itertools.count()

    def run() -> list[int]:
        epoch = next(epochs)
        return Attempt.at_node(node, name, "q", epoch, epoch + 1).run([1, 2])

    assert run() == [1, 1]
    command = platform.command("update", name, "2", "--canary", "100%", "--for", "1h", "--rollback-if", "different>0")
    update = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=platform.environment())
    try:
        shown = lambda: [s["canary"] for s in platform("status", "--json").json["node"]["slots"] if s["deployment"] == name]  # noqa: E731
        wait_until(
            lambda: any("128 of 128 key groups tested by 2, which answers no query" in s for s in shown()), 60, "the canary to begin"
        )
        status = platform("status").out
        assert f"{name}: canary of 2: " in status and f"{name}: canary: 128 of 128 key groups tested by 2, which answers no query" in status
        assert platform("inspect", name, "--json").json["update"]["state"] == "canary"
        assert run() == [2, 2]
        out, _ = update.communicate(timeout=bound(60))
    finally:
        update.kill()
        update.communicate()
    assert update.returncode == 8 and "different>0 holds" in out and "1 continues to serve" in out, out
    assert run() == [3, 3]

    with ThreadPoolExecutor(1) as beside:
        words = ("update", name, "3", "--canary", "100%", "--for", "4s", "--min-events", "2", "--rollback-if", "different>0", "--json")
        passed = beside.submit(platform, *words)
        wait_until(lambda: any("key groups tested by 3" in s for s in shown()) or passed.done(), 60, "the canary to begin")
        assert run() == [4, 4]
        assert passed.result(bound(60)).json["outcome"] == "done"
    assert run() == [5, 5]
    platform("undeploy", name, "--drop-state")


def test_what_makes_no_sense_is_told_before_anything_is_asked(platform: Shell) -> None:
    for words, why in (
        (("--diff", "--canary", "10%"), "exclude each other"),
        (("--for", "1x", "--diff"), "expected a time such as"),
        (("--for", "5s"), "only be used with --canary or --diff"),
        (("--canary", "0%"), "above 0%"),
        (("--canary", "5%", "--rollback-if", "error>1"), "there is no measure 'error'"),
        (("--rollback-if", "errors>0"), "only be used with --canary"),
        (("--min-events", "5"), "only be used with --canary"),
        (("--promote",), "give neither a VERSION nor anything to change"),
        (("-o", "x.jsonl"), "only be used with --diff"),
        (("--diff", "-o", "x.txt"), ".jsonl or .parquet"),
    ):
        assert why in platform("update", "nobody", "2", *words, code=2).err
    assert "nobody" in platform("update", "nobody", "2", "--diff", code=3).err
