"""Operators in Go: through `udo test`, `udo push` and a node, with the guarantees of any operator."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from udo_runtime.state.codec import pack, unpack

from tests.cli.conftest import Shell
from tests.conftest import bound, require, wait_until
from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.operators.conftest import GO, put_program
from tests.operators.sdks import STATIC_GO, run
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from udo_cli.conformance.player import Known, Player, starting
from udo_cli.conformance.schemas import KEYED_BOTH

MANIFEST = """
name = "{name}"
version = "{version}"
{how}
{key}
[input]
{input}
[output]
{output}
"""
NUMBERS = {"input": 'a = "int64"', "output": 'b = "int64"'}
FRAUD = {"input": 'id = "int64"\nvalue = "double"', "output": 'id = "int64"\nflagged = "bool"'}
PYTHON_FRAUD = """
from udo_runtime import Operator
class Fraud(Operator):
    def process(self, event, ctx):
        yield {"id": event["id"], "flagged": (event["value"] or 0.0) > 100.0}
"""
HELD = 50


def folder(top: Path, name: str, program: Path | None, version: str = "1", source: str = "", key: str = "", **columns: str) -> Path:
    """Make an operator's folder, from a program or from Python source."""
    made = top / f"{name}-{version}"
    (made / "bin").mkdir(parents=True)
    how = 'entry = "op:Fraud"' if program is None else f'runtime = "exec"\ncommand = ["bin/{program.name}"]'
    (made / "operator.toml").write_text(MANIFEST.format(name=name, version=version, how=how, key=key, **columns))
    if program is None:
        (made / "op.py").write_text(source)
    else:
        shutil.copy(program, made / "bin")
    return made


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def tried(shell: Shell, made: Path, events: object) -> list[dict[str, object]]:
    (made / "events.json").write_text(json.dumps(events))
    return shell("test", made, "--json").json["answers"]  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_filter_in_go_answers_as_one_in_python(shell: Shell, programs: Path, tmp_path: Path) -> None:
    events = [{"id": n, "value": v} for n, v in enumerate([1.5, 250.0, None, -3.0, 100.0])]
    go = folder(tmp_path, "go", programs / "fraud", **FRAUD)
    python = folder(tmp_path, "python", None, source=PYTHON_FRAUD, **FRAUD)
    assert tried(shell, go, events) == tried(shell, python, events) != []


@pytest.mark.long
def test_timers_fire_in_go_and_every_type_passes_through_it(shell: Shell, programs: Path, tmp_path: Path) -> None:
    columns = {"input": 'k = "string"\nt = "timestamp[us]"', "output": 'k = "string"\nn = "int64"\nended = "timestamp[us]"'}
    made = folder(tmp_path, "visits", programs / "sessionise", key='key = "k"\nevent_time = {column = "t"}', **columns)
    times = [("a", 0), ("a", 10), ("ü", 5), ("b", 100)]
    events = [{"k": k, "t": f"2024-01-01T00:{s // 60:02}:{s % 60:02}"} for k, s in times]
    ended = [(a["k"], a["n"], str(a["ended"])[-8:]) for a in tried(shell, made, events)]
    assert ended == [("ü", 1, "00:00:05"), ("a", 2, "00:00:10")]  # in the order of their timers; b's is not due yet
    types = {"a": "int8", "b": "list<string>", "c": "struct<x: int64, y: string>", "d": "decimal128(10, 2)", "e": "date32", "f": "double"}
    text = "\n".join(f'{n} = "{t}"' for n, t in types.items())
    forward = folder(tmp_path, "forward", programs / "forward", input=text, output=text)
    rows = [
        {"a": 1, "b": ["ü", None], "c": {"x": 1, "y": None}, "d": "1.50", "e": "2024-02-29", "f": 0.5},
        dict.fromkeys(types),
        {"a": -128, "b": [], "c": None, "d": "-0.01", "e": "1969-12-31", "f": -0.0},
    ]
    assert tried(shell, forward, rows) == rows


def test_a_push_is_refused_when_the_program_lacks_what_its_manifest_asks_for(shell: Shell, programs: Path, tmp_path: Path) -> None:
    made = folder(tmp_path, "fraud", programs / "fraud", key='key = "id"', **FRAUD)
    assert "asks for keyed, which its code lacks" in shell("push", made, "--dry-run", code=6).err
    (made / "bin" / "fraud").unlink()
    assert "build the operator first" in shell("push", made, "--dry-run", code=None).err


@pytest.mark.long
def test_a_keyed_operator_in_go_whose_manifest_lost_its_key_is_refused_before_any_event(
    shell: Shell, programs: Path, tmp_path: Path
) -> None:
    given = 'id = "int64"\nk = "int64"'
    made = folder(tmp_path, "count", programs / "count", input=given, output=f'{given}\nn = "int64"')
    (made / "events.json").write_text('[{"id": 1, "k": 1}]')
    for command in (("test",), ("push", "--dry-run"), ("push", "--dry-run", "--no-samples")):
        assert "operator.toml names no key: add key = [" in shell(command[0], made, *command[1:], code=4).err


def test_a_go_operator_is_pushed_deployed_and_called(platform: Shell, programs: Path, tmp_path: Path) -> None:
    made = folder(tmp_path, "fraud", programs / "fraud", **FRAUD)
    platform("push", made)
    platform("deploy", "fraud")
    from udo_interface import connect

    got: list[object] = []
    with connect("fraud", node=str(platform.home / "node" / "node.sock")) as client:
        client.add_listener(got.append)
        client.send({"id": 7, "value": 101.0})
    assert got == [{"id": 7, "flagged": True}]


@pytest.mark.long
def test_udo_dev_record_and_replay_are_as_for_python_and_a_replay_has_the_sandbox(platform: Shell, programs: Path, tmp_path: Path) -> None:
    from udo_interface import connect

    made, file, answers = folder(tmp_path, "spying", programs / "testop", **NUMBERS), tmp_path / "rec", tmp_path / "answers.parquet"
    manifest = made / "operator.toml"
    manifest.write_text(manifest.read_text().replace('"bin/testop"', '"bin/testop", "spy"'))
    (made / "events.json").write_text('[{"a": 1}]')
    told = platform("dev", made, "--once", "--json").json
    assert (told["outcome"], told["answers"]) == ("deployed", [{"b": 0}])
    command = platform.command("record", "spying", "--for", "1h", "--frames", "1", "-o", file, "--json")
    with subprocess.Popen(command, env=platform.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recording:
        assert recording.stdout is not None and recording.stderr is not None
        assert "recording spying (spying@1-dev." in recording.stderr.readline()
        with connect("spying", node=str(platform.home / "node" / "node.sock")) as client:
            client.send({"a": 2})
        assert json.loads(recording.communicate(timeout=bound(60))[0])["frames"] == 1
    said = platform("test", made, "--replay", file, "-o", answers, "--json").json
    assert (said["events"], said["errors"], pq.read_table(answers).column("b").to_pylist()) == (1, 0, [0])
    platform("undeploy", "spying")


def count(daemon: Daemon, epoch: int, keys: list[int]) -> list[int]:
    return Attempt.at_node(daemon.api, "d", "s", epoch, epoch).run(keys)


def test_an_update_from_python_to_go_and_back_keeps_the_state(daemon: Daemon, programs: Path) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert count(daemon, 0, [1, 2, 1]) == [1, 1, 2]
    keyed = {k: v for k, v in KEYED.items() if k != "entry"}
    digest = put_program(daemon, programs / "testop", "count", version="2", **keyed)
    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"
    assert count(daemon, 1, [1, 2, 3]) == [3, 2, 1]
    assert list(daemon.api.update("d", "3", put_image(daemon.home, COUNT, version="3", **KEYED)))[-1].phase == "done"  # type: ignore[arg-type]
    assert count(daemon, 2, [1, 2, 3]) == [4, 3, 2]


def test_a_process_that_is_killed_in_a_frame_loses_and_doubles_nothing(daemon: Daemon, programs: Path) -> None:
    keyed = {k: v for k, v in KEYED.items() if k != "entry"}
    digest = put_program(daemon, programs / "testop", "count", **keyed)
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"env": {"GO_ON": "go-on"}}), 30_000)
    assert count(daemon, 0, [HELD, 1]) == [1, 1]
    attempt = Attempt.at_node(daemon.api, "d", "s", 1, 1)
    attempt.send([1, HELD, 1])
    wait_until(lambda: any("holding" in line.text for line in daemon.api.logs("d")), 30, "the operator to hold the frame")
    for code in (daemon.home / "instances").glob("*/op/code"):
        (code / "go-on").touch()
    own = re.compile(rf"{re.escape(str(daemon.home))}/.*op/code/bin/testop")
    (child,) = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] and own.fullmatch(p.info["cmdline"][0])]
    child.kill()
    attempt.end()
    assert attempt.answers() == [2, 2, 3]
    attempt.close()
    assert count(daemon, 2, [1, HELD]) == [4, 3]


def test_an_operator_in_a_process_of_its_own_sees_nothing_of_its_engine(daemon: Daemon, lane: type[Lane], programs: Path) -> None:
    if shutil.which("bwrap") is None:
        require("bubblewrap", "bwrap is not on PATH")
    digest = put_program(daemon, programs / "testop", "spy")
    config = json.dumps({"env": {"LOOK_FOR": str(daemon.home / "run")}})
    daemon.api.deploy("d", "t", "1", digest, config, 30_000)
    assert lane().ask(1) == 0  # type: ignore[call-arg]


def test_a_failure_in_go_names_error_trace_and_event_and_the_next_frame_is_answered(
    daemon: Daemon, lane: type[Lane], programs: Path
) -> None:
    daemon.api.deploy("d", "t", "1", put_program(daemon, programs / "testop", "plus"), "{}", 30_000)
    for value, says in ((101, "101 is not liked"), (102, 'the event has no column "nowhere"; there are: a')):
        caller = lane()  # type: ignore[call-arg]
        caller.send([1, value])
        failure = caller.receive().header.failure
        assert says in failure.message and failure.event == json.dumps({"a": value})
    assert "main.plus.Process" in failure.traceback
    assert lane().ask(1) == 2  # type: ignore[call-arg]


@pytest.mark.long
def test_states_of_every_type_are_read_and_written_by_go_as_python_has_them(programs: Path) -> None:
    golden = json.loads((GO.parent / "conformance" / "state.json").read_text("utf-8"))
    assert [repr(unpack(bytes.fromhex(g["packed"]))["v"]) for g in golden] == [g["python"] for g in golden]
    assert [pack(unpack(bytes.fromhex(g["packed"]))).hex() for g in golden] == [g["packed"] for g in golden]
    done = run(["go", "test", "."], GO, **STATIC_GO)
    assert done.returncode == 0, done.stdout + done.stderr


def test_text_cut_inside_of_a_character_is_one_bad_event_and_a_failure_of_megabytes_arrives(daemon: Daemon, programs: Path) -> None:
    from udo_interface import connect

    digest = put_program(daemon, programs / "testop", "cut", input={"a": "int64"}, output={"b": "string"})
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"policy": "dead-letter"}), 30_000)
    got: list[object] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        for a in (0, 1, 2, 3):
            client.send({"a": a})
    assert got == [{"b": "Zürich"}] * 2
    letters = sorted(daemon.api.dead_letters("d", whole=True), key=lambda letter: letter.event)
    assert [letter.event for letter in letters] == ['{"a": 1}', '{"a": 2}']
    assert "expected utf8" in letters[0].reason and "it is not UTF-8" in letters[0].reason
    assert "cut: Z" in letters[1].reason and " cut … " in letters[1].reason
    assert any("Z\ufffd" in line.text for line in daemon.api.logs("d"))
    assert daemon.slot().restarts == 0


@pytest.mark.parametrize(
    ("of", "key"),
    [(pa.date32(), dt.date(2024, 2, 29)), (pa.timestamp("us"), dt.datetime(2024, 2, 29, 12, 30)), (pa.int64(), 2**40)],
)
def test_a_timer_answers_with_a_key_of_any_type(programs: Path, of: pa.DataType, key: object) -> None:
    player = Player(starting([str(programs / "conformance")]), "keyed", {}, 30.0)
    try:
        given, answered = (schema.set(0, pa.field("k", of)) for schema in KEYED_BOTH)
        player.start((given, answered), {"columns": ["k"], "time_column": "at"})
        got = player.timers([(0, 1_700_000_000_000_000)], [Known(key, pack({"n": 5}))], 1_700_000_000_000_000)
        assert got.rows.select(["k", "n"]).to_pylist() == [{"k": key, "n": 6}] and got.values == {0: {"n": 6}}
    finally:
        player.close()


def test_a_time_without_a_zone_is_kept_and_answered_as_one(programs: Path) -> None:
    events, answers = (pa.schema([("k", pa.string()), *more, ("t", pa.timestamp("us"))]) for more in ([], [("n", pa.int64())]))
    answers = answers.set(2, answers.field("t").with_name("ended"))
    first, second = dt.datetime(2024, 2, 29, 12), dt.datetime(2024, 2, 29, 13)
    player = Player(starting([str(programs / "sessionise")]), "", {}, 30.0)
    try:
        player.start((events, answers), {"columns": ["k"], "time_column": "t"})
        rows = pa.record_batch([["a", "b"], pa.array([first, second], pa.timestamp("us"))], schema=events)
        got = player.keyed(rows, [Known("a"), Known("b", pack({"n": 3, "last": first}))])
        assert got.values == {0: {"n": 1, "last": first}, 1: {"n": 4, "last": second}}
        due = 1_709_211_630_000_000  # half a minute after the second
        got = player.timers([(0, due)], [Known("b", pack({"n": 4, "last": second}))], due)
        assert got.rows.to_pylist() == [{"k": "b", "n": 4, "ended": second}]
    finally:
        player.close()
