"""Operators in each SDK: through `udo test`, `udo push` and a node, with the same answers as the operator in Python."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.child.wire import INDEX, KEYS
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import pack
from udo_runtime.state.session import Session

from tests.cli.conftest import Shell
from tests.node_manager.conftest import Daemon, put_image
from tests.operators.counted import COUNT, PYTHON_COUNT, counted, put
from tests.operators.sdks import Sdk
from tests.support.selection import long
from udo_cli.conformance import schemas
from udo_cli.conformance.player import AnsweredFailure, Known, Player, starting
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import operator_pb2 as pb
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

EXAMPLES = Path(__file__).parents[2] / "examples" / "operators"
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
# The name of the conformance operator's role `events` in each language.
RAISING = {"cpp": "Doing::process(", "java": "Conformance", "node": "conformance.js", "rust": "conformance::Doing"}
REPLY_S = 30.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def folder(made: Path, how: Sdk | str, sample: str = "", more: str = "", **columns: dict[str, str]) -> Path:
    """Make an operator's folder, with a sample of an SDK, or with Python source and its class."""
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


@pytest.mark.long
def test_a_filter_flags_what_is_above_its_limit(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    events = [{"id": n, "value": v} for n, v in enumerate([1.5, 250.0, None, -3.0, 100.0])]
    flagged = [a["flagged"] for a in tried(shell, folder(tmp_path / "fraud", sdk, "fraud", **FRAUD), events)]
    assert flagged == [False, True, False, False, False]


# Each case starts a process of its own: seconds in one language, half a minute in another. In the gate Go runs them (test_conformance.py).
@pytest.mark.long
def test_it_keeps_the_protocol(sdk: Sdk, shell: Shell) -> None:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    said = shell("conformance", "--json", "--only", " ", "--", *command).json
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])
    assert len(said["cases"]) > 40


@pytest.mark.long
def test_a_failure_names_the_code_it_arose_in(sdk: Sdk) -> None:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    player = Player(starting(command), "events", {}, REPLY_S)
    try:
        player.start((schemas.EVENTS, schemas.N))
        failure = player.fails(schemas.events(("add", 1), ("raise", 7)))
    finally:
        player.close()
    assert RAISING[sdk.name] in failure.trace


@pytest.mark.long
def test_the_roles_of_the_languages_benchmark_answer_as_they_should(sdk: Sdk) -> None:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    events = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("amount", pa.float64()), ("at", pa.int64())])
    given = pa.record_batch([[1, 2, 3, 4], [7, 8, 7, 7], [500.0, 500.5, -1.0, 1e9], [0, 1, 2, 3]], schema=events)
    counted = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("n", pa.int64())])
    for role in ("filter", "filter_each", "tally", "tally_batches"):
        player = Player(starting(command), role, {}, REPLY_S)
        try:
            if role.startswith("filter"):
                player.start((events, events))
                assert player.data(given).to_pylist() == given.take([1, 3]).to_pylist()
                continue
            cards = given.select(["id", "card"])
            player.start((cards.schema, counted), {"columns": ["card"]})
            index = pa.record_batch([pa.array([0, 1, 0, 0], pa.int32())], schema=INDEX)
            keys = pa.record_batch([[pack(7), pack(8)], [pack({"n": 5}), None], [None, None]], schema=KEYS)
            answer = player.answered(pb.Data(), [(pb.Part.EVENTS, cards), (pb.Part.INDEX, index), (pb.Part.KEYS, keys)], 2)
            assert [list(row.values()) for row in answer.rows.to_pylist()] == [[1, 7, 6], [2, 8, 1], [3, 7, 7], [4, 7, 8]]
            assert answer.values == {0: {"n": 8}, 1: {"n": 1}}
        finally:
            player.close()


@pytest.mark.long
@pytest.mark.parametrize("sdk", ["java"], indirect=True)  # C++: test_cpp.py; the others' Arrow makes no such batch
def test_a_batch_of_other_columns_than_its_own_schema_says_is_a_failure_of_code_schema(sdk: Sdk) -> None:
    command = [word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("conformance")]
    player = Player(starting(command), "keyed_batches", {}, REPLY_S)
    try:
        player.start((schemas.KEYED_IN, schemas.KEYED_OUT.set(1, pa.field("n", pa.float64()))), {"columns": ["k"]})
        with pytest.raises(AnsweredFailure, match="(?i)int") as e:
            player.keyed(schemas.keyed(("a", "count", 1, None)), [Known("a")])
        assert e.value.failure.code == "schema"
    finally:
        player.close()


@pytest.mark.long
@pytest.mark.parametrize("sdk", ["cpp", "java", "node", "rust"], indirect=True)
def test_a_keyed_operator_whose_manifest_lost_its_key_is_refused_before_any_event(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    made = folder(tmp_path / "count", sdk, "count", input=COUNT["input"], output=COUNT["output"])
    (made / "events.json").write_text('[{"id": 1, "k": 1}]')
    for command in (("test",), ("push", "--dry-run"), ("push", "--dry-run", "--no-samples")):
        assert "operator.toml names no key: add key = [" in shell(command[0], made, *command[1:], code=4).err


@pytest.mark.long
def test_all_that_it_prints_arrives(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    """Node writes to pipes asynchronously: such output is lost if the process ends first."""
    made = folder(tmp_path / "prints", sdk, "conformance", input={"do": "string", "n": "int64"}, output={"n": "int64"})
    (made / "events.json").write_text(json.dumps([{"do": "print", "n": n} for n in range(10_240)]))
    said = shell("test", made, "--env", "UDO_CONFORMANCE=events").err.splitlines()
    assert [line for line in said if line.startswith("print ")] == [f"print {n}" for n in range(10_240)]


@pytest.mark.long
def test_timers_fire(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    columns = {"input": {"k": "string", "t": "timestamp[us]"}, "output": {"k": "string", "n": "int64", "ended": "timestamp[us]"}}
    made = folder(tmp_path / "visits", sdk, "sessionise", more='key = "k"\nevent_time = {column = "t"}', **columns)
    times = [("a", 0), ("a", 10), ("ü", 5), ("b", 100)]
    events = [{"k": k, "t": f"2024-01-01T00:{s // 60:02}:{s % 60:02}"} for k, s in times]
    ended = [(a["k"], a["n"], str(a["ended"])[-8:]) for a in tried(shell, made, events)]
    assert ended == [("ü", 1, "00:00:05"), ("a", 2, "00:00:10")]  # in the order of their timers; b's is not due yet


@pytest.mark.long
def test_an_event_whose_timer_lies_beyond_the_year_9999_is_one_bad_event(sdk: Sdk, tmp_path: Path) -> None:
    both = (
        pa.schema([("k", pa.string()), ("t", pa.timestamp("us"))]),
        pa.schema([("k", pa.string()), ("n", pa.int64()), ("ended", pa.timestamp("us"))]),
    )
    command = tuple(word.replace("bin/", f"{sdk.bin}/") for word in sdk.starting("sessionise"))
    made = ChildProcessor(Launch(command, str(tmp_path), str(tmp_path), dict(os.environ)), both, {"columns": ["k"]}, Context("t", "1"))
    made.open()
    try:
        run, session = made.keyed(KeyedConfig(("k",), "t")), Session("s")
        run.policy = Policy(dead_letter=True)
        times = [dt.datetime(2024, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59), dt.datetime(2024, 1, 2)]
        rows = pa.record_batch([["a", "b", "c"], pa.array(times, pa.timestamp("us"))], schema=both[0])
        header = Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
        done = run.events(session, header, rows, pa.array([0] * 3, pa.int32()))
    finally:
        made.close()
    assert done is not None and [bad.row for bad in done.bad] == [1]
    assert [k in session.groups[0].values for k in "abc"] == [True, False, True]


@pytest.mark.long
@pytest.mark.parametrize("sdk", ["cpp", "java", "node", "rust"], indirect=True)
def test_an_operator_with_two_inputs_answers_events_that_name_theirs(sdk: Sdk, shell: Shell, tmp_path: Path) -> None:
    made = tmp_path / "news_moves"
    shutil.copytree(EXAMPLES / made.name, made, ignore=shutil.ignore_patterns("*.py"))
    manifest, command = made / "operator.toml", json.dumps(sdk.starting(made.name))
    manifest.write_text(manifest.read_text().replace('entry = "news_moves:NewsMoves"', f'runtime = "exec"\ncommand = {command}'))
    sdk.put(made)
    answers = shell("test", made, "--json").json["answers"]
    assert answers == shell("test", EXAMPLES / made.name, "--json").json["answers"] != []


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


@pytest.mark.long
def test_an_event_that_is_answered_without_end_is_a_dead_letter_and_ends_no_process(sdk: Sdk, daemon: Daemon) -> None:
    from udo_interface import connect

    digest = put(daemon, sdk, "conformance", "events", input={"do": "string", "n": "int64"}, output={"n": "int64"})
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"policy": "dead-letter"}), 30_000)
    got: list[object] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        for do in ("add", "endless", "add"):
            client.send({"do": do, "n": 1})
    assert got == [{"n": 2}, {"n": 2}]
    [letter] = daemon.api.dead_letters("d", whole=True)
    assert f"the bound is {DEFAULT.answer_bytes}: return less per event, or send fewer" in letter.reason
    assert daemon.slot().restarts == 0


@pytest.mark.long
def test_an_update_from_python_and_back_keeps_the_state(sdk: Sdk, daemon: Daemon) -> None:
    daemon.deploy(PYTHON_COUNT, entry="op:Count", **COUNT)
    assert counted(daemon, 0, [1, 2, 1]) == [1, 1, 2]
    digest = put(daemon, sdk, "count", version="2", rehearsed=[{"id": 1, "k": 1}, {"id": 2, "k": 9}], **COUNT)
    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"
    assert counted(daemon, 1, [1, 2, 3, 1]) == [3, 2, 1, 4]
    digest = put_image(daemon.home, PYTHON_COUNT, version="3", entry="op:Count", **COUNT)  # type: ignore[arg-type]
    assert list(daemon.api.update("d", "3", digest))[-1].phase == "done"
    assert counted(daemon, 2, [1, 2, 3]) == [5, 3, 2]


@pytest.mark.long
@pytest.mark.parametrize("sdk", [long("cpp"), long("java"), "node", long("rust")], indirect=True)
def test_an_update_is_to_a_version_that_has_rehearsed_and_not_to_one_that_fails_in_it(sdk: Sdk, daemon: Daemon) -> None:
    from udo_interface import connect

    columns = {"input": {"do": "string", "n": "int64"}, "output": {"n": "int64"}}
    daemon.api.deploy("d", "t", "1", put(daemon, sdk, "conformance", "events", **columns), "{}", 30_000)
    print_7, raise_7 = ([{"do": "add", "n": 1}, {"do": do, "n": 7}] for do in ("print", "raise"))
    digest = put(daemon, sdk, "conformance", "events", version="2", rehearsed=raise_7, **columns)
    last = list(daemon.api.update("d", "2", digest))[-1]
    assert last.phase == "failed" and "fails on its sample events" in last.detail and "raise 7" in last.detail
    digest = put(daemon, sdk, "conformance", "events", version="3", rehearsed=print_7, **columns)
    assert list(daemon.api.update("d", "3", digest))[-1].phase == "done"
    assert any("print 7" in line.text for line in daemon.api.logs("d"))  # from the rehearsal: no client has sent it
    got: list[object] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        client.send({"do": "add", "n": 1})
    assert got == [{"n": 2}]
