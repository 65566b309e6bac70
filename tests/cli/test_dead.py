"""`udo dead` and the policy options of `udo deploy`, on a real platform."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.node_manager.conftest import Lane
from tests.support.attempt import Attempt
from udo_cli.commands import dead
from udo_cli.main import cli
from udo_protocol.node.api import connect_node

pytestmark = pytest.mark.long

BODY = "if {13, 14} & set(batch.column('a').to_pylist()): raise ValueError('unlucky [/oops] columns [id, n]')"
FIXED = "if 14 in batch.column('a').to_pylist(): raise ValueError('worse')"


def send(platform: Shell, deployment: str, values: list[int]) -> list[int]:
    caller = Lane(connect_node(platform.home / "node" / "node.sock"), deployment, f"lane{len(values)}.{values[0]}")
    try:
        caller.send(values)
        return caller.values(caller.receive())
    finally:
        caller.end.close()
        caller.conn.close()


@pytest.fixture
def picky(platform: Shell, operator: Callable[..., Path]) -> Iterator[str]:
    """A deployment with four dead letters: 13, 14 (version 1 fails on both), 13, 14."""
    platform("push", operator("picky", "1", body=BODY))
    platform("push", operator("picky", "2", body=FIXED))
    platform("deploy", "picky@1", "--on-error", "dead-letter", "--retries", "1", "--dead-letters", "50")
    assert send(platform, "picky", [1, 13, 14, 2]) == [2, 3]
    assert send(platform, "picky", [13, 14]) == []
    yield "picky"
    platform("undeploy", "picky", "--drop-state", code=None)


def ids(platform: Shell) -> list[str]:
    return [d["id"] for d in platform("dead", "ls", "picky", "--json").json]


def test_no_more_is_dropped_than_was_confirmed(platform: Shell, picky: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(text: str, **_: object) -> bool:
        assert text == "Delete the 4 dead letters of picky?"
        return send(platform, "picky", [13]) == []

    for name in (k for k in os.environ if k.startswith("UDO_")):
        monkeypatch.delenv(name)
    monkeypatch.setattr(dead, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(dead.click, "confirm", confirm)
    done = CliRunner().invoke(cli, ["dead", "drop", "picky", "--all"], prog_name="udo", env={"UDO_HOME": str(platform.home)})
    assert "picky: 4 dead letters dropped" in done.output
    assert len(ids(platform)) == 1


@pytest.mark.short
def test_letters_are_listed_shown_and_counted(platform: Shell, picky: str) -> None:
    shown = platform("dead", "ls")
    assert "picky@1" in shown.out
    assert "ValueError: unlucky [/oops] columns [id, n]" in shown.out
    letter = ids(platform)[0]
    text = platform("dead", "show", letter[:8]).out
    assert 'event: {"a": 13}' in text
    assert "op.py" in text
    found = platform("dead", "show", letter, "--json").json
    assert (found["event"], found["reason"], found["row"]) == ({"a": 13}, "ValueError: unlucky [/oops] columns [id, n]", 1)
    assert pa.ipc.open_stream(base64.b64decode(found["arrow"])).read_all().to_pylist() == [{"a": 13}]
    assert "no dead letter 'nobody'" in platform("dead", "show", "nobody", code=3).err
    assert "dead-letter, 1 retries" in platform("status").out
    [slot] = [s for s in platform("status", "--json").json["node"]["slots"] if s["deployment"] == "picky"]
    assert (slot["policy"], int(slot["dead_letters"])) == ("dead-letter, 1 retries", 4)

    def counted() -> tuple[int, int]:
        [row] = [s for s in platform("top", "--json", "--once").json["slots"] if s["deployment"] == "picky"]
        return row["dead_letters"], row["retries"]

    wait_until(lambda: counted() == (4, 2), 20, "the instance to publish its counters")  # published once a second
    described = platform("inspect", "picky", "--json").json
    assert (described["policy"], described["limits"]) == ("dead-letter", {"retries": 1.0, "dead_letters": 50.0})


def test_after_an_update_those_that_are_answered_now_go_and_the_others_stay_with_the_new_reason(
    platform: Shell, picky: str, tmp_path: Path
) -> None:
    one = ids(platform)[0]
    assert "unlucky" in platform("dead", "replay", "picky", one, code=6).err
    [again] = [d for d in platform("dead", "ls", "picky", "--json").json if d["id"] == one]
    assert again["replays"] == 1
    platform("update", "picky", "2")
    assert platform("inspect", "picky", "--json").json["policy"] == "dead-letter"
    assert platform("dead", "replay", "picky", one).out == '{"b": 14}\n'
    file = tmp_path / "answers.parquet"
    done = platform("dead", "replay", "picky", "--all", "-o", file, code=6)
    assert "1 answered, 2 failed again" in done.err
    assert parquet.read_table(file).to_pylist() == [{"b": 14}]
    left = platform("dead", "ls", "picky", "--json").json
    assert [(d["reason"], d["replays"]) for d in left] == [("ValueError: worse", 1)] * 2
    assert platform("dead", "replay", "picky", "--all", "-o", tmp_path / "x.csv", code=2).err.count(".parquet or .json") == 1


def test_nothing_is_dropped_before_its_answer_is_written(platform: Shell, picky: str, tmp_path: Path) -> None:
    platform("update", "picky", "2")
    before = ids(platform)
    platform("dead", "replay", "picky", before[0], "-o", tmp_path / "no" / "such" / "a.json", code=None)
    assert ids(platform) == before


def test_dropping_asks_and_undeploying_says_what_would_be_lost(platform: Shell, picky: str) -> None:
    assert "use --yes" in platform("dead", "drop", "picky", "--all", code=2).err
    assert "or --all" in platform("dead", "drop", "picky", code=2).err
    assert platform("dead", "drop", "picky", ids(platform)[0], "--json").json == {"deployment": "picky", "dropped": 1}
    refused = platform("undeploy", "picky", code=4)
    assert "3 dead letters on node" in refused.err
    assert platform("dead", "drop", "picky", "--all", "--yes").out == "picky: 3 dead letters dropped\n"
    assert platform("dead", "ls", "picky").out == "no dead letters\n"
    platform("undeploy", "picky")


COUNTS = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if {condition}: raise ValueError("unlucky")
        yield {{"b": event["a"] * 100 + n}}
"""


def counts(folder: Path, version: str, condition: str) -> Path:
    folder.mkdir()
    manifest = f'name = "counts"\nversion = "{version}"\nentry = "op:Count"\nkey = "a"\n[input]\na = "int64"\n[output]\nb = "int64"\n'
    (folder / "operator.toml").write_text(manifest)
    (folder / "op.py").write_text(COUNTS.format(condition=condition))
    return folder


def test_letters_of_a_keyed_operator_take_part_in_the_next_micro_batch(platform: Shell, tmp_path: Path) -> None:
    platform("push", counts(tmp_path / "one", "1", "event['a'] == 13"))
    platform("push", counts(tmp_path / "two", "2", "False"))
    platform("deploy", "counts@1", "--on-error", "dead-letter")
    node = connect_node(platform.home / "node" / "node.sock")
    assert Attempt.at_node(node, "counts", "s", 0, 1).run([1, 13, 13]) == [101]
    assert [(d["keyed"], d["session"], d["epoch"], d["replay"]) for d in platform("dead", "ls", "counts", "--json").json] == [
        (True, "s", 0, "")
    ] * 2
    assert "go to the query" in platform("dead", "replay", "counts", "--all", "-o", tmp_path / "x.json", code=2).err
    platform("update", "counts", "2")
    assert "2 dead letters wait for the next micro-batch" in platform("dead", "replay", "counts", "--all").out
    assert "(waiting) ValueError" in platform("dead", "ls").out
    assert Attempt.at_node(node, "counts", "s", 1, 2).run([1]) == [102, 1301, 1302]
    assert {d["replay"] for d in platform("dead", "ls", "counts", "--json").json} == {"answered in epoch 1"}
    assert Attempt.at_node(node, "counts", "s", 2, 3).run([13]) == [1303]
    assert platform("dead", "ls", "counts", "--json").json == []
    platform("undeploy", "counts", "--drop-state")


def test_bad_policies_are_refused_before_anything_is_asked(udo: Shell) -> None:
    assert "'shrug' is not one of 'fail', 'dead-letter'" in udo("deploy", "x", "--on-error", "shrug", code=2).err
    assert "0<=x<=10" in udo("deploy", "x", "--retries", "11", code=2).err
    assert "0<=x<=10000" in udo("deploy", "x", "--poll-us", "10001", code=2).err
    assert "need --on-error dead-letter" in udo("deploy", "x", "--dead-letters", "5", code=2).err


@pytest.mark.short
def test_every_sub_command_has_help_with_examples(udo: Shell) -> None:
    for name in ("ls", "show", "replay", "drop"):
        assert f"udo dead {name}" in udo("dead", name, "--help").out
