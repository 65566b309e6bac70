"""Operators by each SDK: through `udo test`, `udo push` and a node, with the answers of the same operator in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.conftest import Shell
from tests.node_manager.conftest import Daemon, put_image
from tests.operators.sdks import Sdk
from tests.support.attempt import Attempt, group_of
from udo_protocol.queue.frame import DATA

MANIFEST = """
name = "{name}"
version = "1"
{how}
[input]
{input}
[output]
{output}
"""
FRAUD = {"input": {"id": "int64", "value": "double"}, "output": {"id": "int64", "flagged": "bool"}}
COUNT = {"input": {"id": "int64", "k": "int64"}, "output": {"id": "int64", "k": "int64", "n": "int64"}, "key": ["k"]}
PYTHON_COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {**event, "n": n}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def folder(made: Path, how: Sdk | str, sample: str = "", more: str = "", **columns: dict[str, str]) -> Path:
    """An operator's folder: a sample of an SDK, or Python source with its class."""
    made.mkdir()
    tables = {n: "\n".join(f'{c} = "{t}"' for c, t in columns[n].items()) for n in ("input", "output")}
    if isinstance(how, Sdk):
        how.put(made)
        lines = f'runtime = "exec"\ncommand = {json.dumps(how.starting(sample))}'
    else:
        (made / "op.py").write_text(how)
        lines = f'entry = "op:{sample}"'
    (made / "operator.toml").write_text(MANIFEST.format(name=made.name, how=f"{lines}\n{more}", **tables))
    return made


def tried(shell: Shell, made: Path, events: object, *more: str) -> list[dict[str, object]]:
    (made / "events.json").write_text(json.dumps(events))
    return shell("test", made, "--json", *more).json["answers"]  # type: ignore[no-any-return]


def test_a_filter_flags_what_is_above_its_limit(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    events = [{"id": n, "value": v} for n, v in enumerate([1.5, 250.0, None, -3.0, 100.0])]
    flagged = [a["flagged"] for a in tried(shell, folder(tmp_path / "fraud", sdk, "fraud", **FRAUD), events)]
    assert flagged == [False, True, False, False, False]


def test_it_keeps_the_protocol(sdk: Sdk, shell: Shell) -> None:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    said = shell("conformance", "--json", "--only", " ", "--", *command).json
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])
    assert len(said["cases"]) > 40


def test_timers_fire(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    columns = {"input": {"k": "string", "t": "timestamp[us]"}, "output": {"k": "string", "n": "int64", "ended": "timestamp[us]"}}
    made = folder(tmp_path / "visits", sdk, "sessionise", more='key = "k"\nevent_time = {column = "t"}', **columns)
    times = [("a", 0), ("a", 10), ("ü", 5), ("b", 100)]
    events = [{"k": k, "t": f"2024-01-01T00:{s // 60:02}:{s % 60:02}"} for k, s in times]
    ended = [(a["k"], a["n"], str(a["ended"])[-8:]) for a in tried(shell, made, events)]
    assert ended == [("ü", 1, "00:00:05"), ("a", 2, "00:00:10")]  # as their timers are due; b's is not yet


def test_it_is_pushed_deployed_and_called(sdk: Sdk, platform: Shell, tmp_path: Path) -> None:
    from udo_interface import connect

    name = f"fraud-{sdk.name}"
    platform("push", folder(tmp_path / name, sdk, "fraud", **FRAUD))
    platform("deploy", name)
    got: list[object] = []
    with connect(name, node=str(platform.home / "node" / "node.sock")) as client:
        client.add_listener(got.append)
        client.send({"id": 7, "value": 101.0})
    assert got == [{"id": 7, "flagged": True}]


def put(daemon: Daemon, sdk: Sdk, sample: str, **manifest: object) -> str:
    """An operator that is a command in the node's image cache; its digest."""
    digest = put_image(daemon.home, "", entry="", runtime="exec", command=sdk.starting(sample), **manifest)  # type: ignore[arg-type]
    sdk.put(daemon.home / "images" / digest.replace(":", "-") / "code")
    return digest


def counted(daemon: Daemon, epoch: int, keys: list[int]) -> list[int]:
    attempt = Attempt.at_node(daemon.api, "d", "s", epoch, epoch)
    groups = pa.array(map(group_of, keys), pa.int32())
    attempt.push(DATA, pa.record_batch([range(len(keys)), keys, groups], schema=attempt.input), rows=len(keys))
    attempt.end()
    answers = attempt.answers()
    attempt.close()
    assert [(i, k) for i, k, _ in answers] == list(enumerate(keys))
    return [n for _, _, n in answers]


def test_an_update_from_python_and_back_keeps_the_state(sdk: Sdk, daemon: Daemon) -> None:
    daemon.deploy(PYTHON_COUNT, entry="op:Count", **COUNT)
    assert counted(daemon, 0, [1, 2, 1]) == [1, 1, 2]
    assert list(daemon.api.update("d", "2", put(daemon, sdk, "count", version="2", **COUNT)))[-1].phase == "done"
    assert counted(daemon, 1, [1, 2, 3, 1]) == [3, 2, 1, 4]
    digest = put_image(daemon.home, PYTHON_COUNT, version="3", entry="op:Count", **COUNT)  # type: ignore[arg-type]
    assert list(daemon.api.update("d", "3", digest))[-1].phase == "done"
    assert counted(daemon, 2, [1, 2, 3]) == [5, 3, 2]
