"""`udo record` on real nodes, and `udo test --replay`: a local operator answers the recorded frames as the served one did."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Shell
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from tests.support import keyed_node
from tests.support.attempt import Attempt
from tests.support.recorded_query import COUNT, KEYED, MINUTE, T0, P, Query, by_lane, queue, stats
from tests.support.recording import Recorder, replayed
from udo_cli import recorder
from udo_protocol.errors import NotFound, UsageError
from udo_protocol.formats.recording_file import Recording
from udo_protocol.queue.frame import ERROR

pytestmark = pytest.mark.long

STATELESS: dict[str, Any] = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}}
OP = """
from udo_runtime import Operator
class Op(Operator):
    def process(self, event, ctx):
        {line}
        yield {{"b": {answer}}}
"""
CAREFUL = """
from udo_runtime import operator
@operator
def run(batch):
    assert batch.column("a")[0].as_py() < 4
    return {"b": batch.column("a")}
"""
EVENTWISE = {**STATELESS, "entry": "op:Op"}


def pins(daemon: Daemon) -> list[int]:
    """Return the positions from which the log is held."""
    with queue(daemon) as conn:
        return [int(bytes(v).partition(b":")[0]) for v in conn.call("HVALS", f"{P}pins")]


@pytest.mark.short
def test_a_stateless_recording_replays_to_the_answers_that_were_served(
    daemon: Daemon, lane: Callable[..., Lane], udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    daemon.deploy(add(1), config_json='{"env": {"GREETING": "hunter2"}, "secrets": {"KEY": "hunter3"}}')
    one, two = lane(), lane()
    one.ask(100)  # before the recording begins
    recording = Recorder(daemon.api, "d", tmp_path / "r", frames=4)
    served: dict[str, list[Any]] = {}
    for each, values in ((one, [1, 2, 3]), (two, [4]), (one, [5, 6]), (two, [])):
        each.send(values)
        served.setdefault(each.name, []).extend((v,) for v in each.values(each.receive()))
    made = recording.done()
    assert (made.frames, made.events, made.gaps, made.reason) == (4, 6, [], "it has 4 frames")
    outcome, answers = by_lane(udo, local(add(1), **STATELESS), tmp_path / "r")
    assert answers == served
    assert (outcome["frames"], outcome["events"], outcome["answers"], outcome["errors"]) == (4, 6, 6, 0)
    _, changed = by_lane(udo, local(add(10), **STATELESS), tmp_path / "r")
    assert changed == {name: [(v + 9,) for (v,) in values] for name, values in served.items()}
    text = (tmp_path / "r").read_bytes()
    assert b"GREETING" in text
    assert b"hunter" not in text
    assert one.ask(7) == 8
    assert stats(daemon).base == stats(daemon).emitted + 1


@pytest.mark.short
def test_a_keyed_recording_in_the_middle_of_a_query_replays_to_the_answers_that_were_served(
    daemon: Daemon, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    daemon.deploy(COUNT.format(step=1), **KEYED)
    query, other = Query(daemon, "q"), Query(daemon, "other")
    query.run(0, [1, 2, 1], [3])
    other.run(0, [1])
    covered = set(query.served) | set(other.served)
    under_way = query.attempt(1)  # some of its frames are answered, none is covered by a checkpoint
    under_way.send([1, 4], [T0 + MINUTE] * 2)
    query.collect(under_way)

    recording = Recorder(daemon.api, "d", tmp_path / "r")
    under_way.send([2], [T0 + MINUTE])
    query.collect(under_way)
    again = query.attempt(1)  # the task failed: its effects are undone
    again.send([1, 5], [T0 + MINUTE] * 2)
    again.end()
    query.collect(again)
    other.run(1, [1, 1])
    query.run(2, [1, 3])  # the timers of epoch 0 are due
    query.run(3, [5])
    made = recording.stop(stats(daemon).emitted)
    under_way.close()
    again.close()

    assert (made.sessions, made.gaps, made.reason) == (2, [], recorder.INTERRUPTED)
    served = {n: rows for q in (query, other) for n, rows in q.served.items() if n not in covered and rows}
    assert any(n < 0 for rows in served.values() for _, n in rows), "no timer has fired"
    outcome, answers = by_lane(udo, local(COUNT.format(step=1), **KEYED), tmp_path / "r")
    assert answers == served
    assert [(e["session"], e["epoch"]) for e in outcome["epochs"]] == [("q", 1), ("other", 1), ("q", 2), ("q", 3)]
    outcome, of_epoch = by_lane(udo, local(COUNT.format(step=1), **KEYED), tmp_path / "r", "--epoch", "2")
    assert of_epoch == {name: rows for name, rows in served.items() if name.split(".")[2] == "2"}
    _, changed = by_lane(udo, local(COUNT.format(step=100), **KEYED), tmp_path / "r")
    assert changed[f"other.r1.1.{other._attempts}"] == [(1, 101), (1, 201)]  # continues from the recorded 1


def test_a_recording_that_begins_while_checkpoints_are_written_has_the_state_that_fits_its_frames(
    daemon: Daemon, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    daemon.deploy(COUNT.format(step=1), **KEYED)
    query, stop = Query(daemon, "q"), threading.Event()

    def run() -> None:
        epoch = 0
        while not stop.is_set():
            query.run(epoch, [epoch % 5, 1], [epoch % 7, 2])
            epoch += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        made = [Recorder(daemon.api, "d", tmp_path / f"r{i}", frames=40).done() for i in range(5)]
    finally:
        stop.set()
        thread.join(bound(30))
    operator = local(COUNT.format(step=1), **KEYED)
    for i in range(5):
        assert made[i].frames == 40
        _, answers = by_lane(udo, operator, tmp_path / f"r{i}")
        first, *others = answers
        assert len(others) >= 10
        for name, rows in answers.items():  # the last attempt may be recorded in part
            assert rows == query.served[name][: len(rows)] if name == others[-1] else rows == query.served[name], name


def test_a_recorder_that_does_not_keep_up_holds_nothing_back_and_says_what_is_missing(daemon: Daemon, lane: Callable[..., Lane]) -> None:
    daemon.deploy(add(1), config_json=json.dumps({"limits": {"retained_bytes": 4 << 20}}))
    each = lane()
    parts = daemon.api.record("d", 60, 200)
    assert next(parts).header.first_seq == 1
    for _ in range(60):  # 30 MB that nobody takes, past a log of 4 MB
        each.send([1] * (64 << 10))
        each.receive()
    missing: list[int] = []
    seen: list[int] = []
    for part in parts:
        if part.WhichOneof("part") == "gap":
            if not missing:
                each.send([1])  # the last frame, number 61
            missing += range(part.gap.first_seq, part.gap.last_seq + 1)
        elif part.WhichOneof("part") == "frames":
            seen += range(part.frames.first_seq, part.frames.first_seq + len(part.frames.frames))
        if 61 in (*seen[-1:], *missing[-1:]):
            break
    parts.close()  # type: ignore[attr-defined]
    assert missing
    assert sorted({*seen, *missing}) == list(range(1, 62))
    assert not set(seen) & set(missing)
    wait_until(lambda: pins(daemon) == [], 20, "the pin to be released")


def test_a_keyed_recording_ends_where_its_recorder_did_not_keep_up(daemon: Daemon) -> None:
    daemon.deploy(keyed_node.COUNT, config_json=json.dumps({"limits": {"retained_bytes": 4 << 20}}), **keyed_node.KEYED)
    parts = daemon.api.record("d", 60, 200)
    next(parts)
    query = Attempt.at_node(daemon.api, "d", "q", 0, 1)
    for _ in range(20):  # 25 MB that nobody takes, past a log of 4 MB
        query.send([1] * (64 << 10))
        query.frames()
    query.end()
    query.frames()
    query.close()
    *_, gap, end = parts
    assert gap.gap.last_seq >= gap.gap.first_seq > 0
    assert "trimmed before they could be recorded: what follows depends on them" in end.end.reason


def test_a_recording_ends_where_the_state_was_changed_from_outside(home_daemon: Daemon, tmp_path: Path) -> None:
    daemon = home_daemon.start("--session-idle-s", "0")
    daemon.deploy(COUNT.format(step=1), **KEYED)
    query = Query(daemon, "q")
    query.run(0, [1])
    recording = Recorder(daemon.api, "d", tmp_path / "r")
    query.run(1, [1])
    daemon.api.drop_state("d", "q")
    Query(daemon, "q").run(0, [1])  # on another state
    made = recording.done()
    assert "state of session q was dropped or replaced" in made.reason
    assert made.frames <= 2


def test_a_recording_ends_when_the_deployment_is_removed(daemon: Daemon, lane: Callable[..., Lane], tmp_path: Path) -> None:
    daemon.deploy(add(1))
    each = lane()
    each.ask(1)
    recording = Recorder(daemon.api, "d", tmp_path / "r")
    each.ask(2)
    wait_until(lambda: pins(daemon) == [3], 20, "the frame to be recorded")
    daemon.api.undeploy("d")
    made = recording.done()
    assert (made.frames, made.reason) == (1, "deployment d was removed meanwhile")
    with queue(daemon) as conn:
        assert conn.call("KEYS", f"{P}*") == []


def test_the_pin_of_a_dead_recorder_goes(daemon: Daemon, lane: Callable[..., Lane], udo: Shell, tmp_path: Path) -> None:
    daemon.deploy(add(1))
    each = lane()
    command = udo.command("record", "d", "--for", "1h", "-o", tmp_path / "r", "--node", daemon.home / "node.sock")
    cli = subprocess.Popen(command, env=udo.environment())
    wait_until(lambda: pins(daemon) == [1], 20, "the recording to begin")
    cli.kill()
    cli.wait()
    wait_until(lambda: pins(daemon) == [], 20, "the pin to be released")
    assert not (tmp_path / "r").exists()

    parts = daemon.api.record("d", 3600)
    next(parts)
    daemon.kill()  # now the node manager, which then cannot release the pin

    def trimmed() -> bool:
        each.ask(1)
        now = stats(daemon)
        return now.base == now.emitted + 1

    wait_until(trimmed, 20, "the log to be trimmed again")
    daemon.start()


def test_ctrl_c_leaves_a_valid_file_of_what_has_come(
    daemon: Daemon, lane: Callable[..., Lane], udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    daemon.deploy(add(1))
    each, file = lane(), tmp_path / "r"
    command = udo.command("record", "d", "--for", "1h", "-o", file, "--json")
    cli = subprocess.Popen(command, env=udo.environment(UDO_NODE=str(daemon.home / "node.sock")), stdout=subprocess.PIPE, text=True)
    wait_until(lambda: pins(daemon) == [1], 20, "the recording to begin")
    each.send(range(64 << 10))
    each.receive()
    (new,) = tmp_path.glob(".r.*.new")
    wait_until(lambda: new.stat().st_size > 512 << 10, 20, "the frame to be written")
    cli.send_signal(signal.SIGINT)
    out, _ = cli.communicate(timeout=bound(30))
    assert cli.returncode == 0
    said = json.loads(out)
    [slot] = said["slots"]
    assert (said["frames"], said["events"], slot["reason"]) == (1, 64 << 10, recorder.INTERRUPTED)
    assert not new.exists() and file.stat().st_mode & 0o777 == 0o600
    outcome, _ = by_lane(udo, local(add(1), **STATELESS), file)
    assert outcome["answers"] == 64 << 10


def test_what_cannot_be_recorded_is_said(daemon: Daemon, udo: Shell, tmp_path: Path) -> None:
    udo.env["UDO_NODE"] = str(daemon.home / "node.sock")
    file = tmp_path / "r"
    assert "no deployment 'x'" in udo("record", "x", "--for", "1s", "-o", file, code=3).err
    assert not list(tmp_path.glob(".r.*"))
    daemon.deploy(add(1))
    assert "expected a time such as" in udo("record", "d", "--for", "soon", "-o", file, code=2).err
    assert "no folder" in udo("record", "d", "--for", "1s", "-o", tmp_path / "x" / "y", code=3).err
    assert "/proc/r cannot be written" in udo("record", "d", "--for", "1s", "-o", "/proc/r", code=2).err
    nothing = udo("record", "d", "--for", "100ms", "-o", file)
    assert "recording d (t@1, slot 0 on node n1) from frame 1 on" in nothing.err
    assert "answered nothing" in nothing.err
    with Recording(file) as found:
        [slot] = found.slots
        assert list(slot.frames()) == []
        assert slot.end["reason"] == "0.1 s are over"
    assert "--force" in udo("record", "d", "--for", "1s", "-o", file, code=4).err
    udo("record", "d", "--for", "100ms", "-o", file, "--force")


# -- replay alone ---------------------------------------------------------------------------------------


@pytest.fixture
def recorded(daemon: Daemon, lane: Callable[..., Lane], tmp_path: Path) -> Path:
    """A recording of five frames with one event each, 1 to 5, and of one with garbage."""
    daemon.deploy(add(1))
    each = lane()
    recording = Recorder(daemon.api, "d", tmp_path / "five", frames=6)
    for n in range(1, 6):
        each.ask(n)
    garbage = lane()
    garbage.end.push(1, 0, [b"no frame at all"])
    assert garbage.receive().header.kind == ERROR
    assert recording.done().frames == 6
    return tmp_path / "five"


def test_failures_are_told_with_traceback_and_event_and_the_rest_goes_on(
    recorded: Path, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    operator = local(OP.format(line="pass", answer="6 // (event['a'] - 3)"), **EVENTWISE)
    done: Done = udo("test", operator, "--replay", recorded, code=6)
    assert "ZeroDivisionError" in done.err
    assert 'the event: {"a": 3}' in done.err
    assert "op.py" in done.err
    assert "t@9: 6 frames, 5 events, 2 answers, 2 errors, 2 skipped, 0 stale" in done.out
    outcome, rows = replayed(udo, operator, recorded, code=6)
    assert [row["b"] for row in rows] == [-3, -6]
    assert [(f["seq"], f["frame"], f["code"]) for f in outcome["failures"]] == [(3, "data", "operator"), (6, "undecodable", "protocol")]


def test_an_operator_that_does_not_fit_the_recording_is_refused(recorded: Path, udo: Shell, local: Callable[..., Path]) -> None:
    wrong = local(add(1), **{**STATELESS, "input": {"z": "int64"}})
    assert "column 'z' (int64) is missing; there are: a" in udo("test", wrong, "--replay", recorded, code=4).err
    keyed = local(OP.format(line="pass", answer="1"), **EVENTWISE, key=["a"])
    assert "keeps state by a int64; t@1 was recorded keeping it by nothing" in udo("test", keyed, "--replay", recorded, code=4).err
    fits = local(add(1), **STATELESS)
    assert "name no epoch" in udo("test", fits, "--replay", recorded, "--epoch", "1", code=2).err
    assert "there is no folder" in udo("test", fits, "--replay", recorded, "-o", recorded.parent / "x" / "y", code=3).err
    assert "exclude each other" in udo("test", fits, "--replay", recorded, "--events", recorded, code=2).err
    assert "belong to --replay" in udo("test", fits, "--pdb", code=2).err


MIGRATE = """
    def migrate(self, old, from_version):
        return {{"n": old["n"] * 1000}}
"""


def test_state_of_another_version_is_migrated_or_refused(daemon: Daemon, udo: Shell, local: Callable[..., Path], tmp_path: Path) -> None:
    daemon.deploy(COUNT.format(step=1), **KEYED, state_version=1)
    query = Query(daemon, "q")
    query.run(0, [1, 1])
    recording = Recorder(daemon.api, "d", tmp_path / "r", frames=2)
    query.run(1, [1])
    recording.done()
    err = udo("test", local(COUNT.format(step=1), **KEYED, state_version=2), "--replay", tmp_path / "r", code=4).err
    assert "reads state of version 2; the recorded state of t@1 is of version 1" in err
    next_version = local((COUNT + MIGRATE).format(step=1), **KEYED, state_version=2, migrates_from=[1])
    _, rows = replayed(udo, next_version, tmp_path / "r")
    assert [row["n"] for row in rows] == [2001]


def test_a_damaged_file_is_refused(recorded: Path, udo: Shell, local: Callable[..., Path], tmp_path: Path) -> None:
    operator, bad = local(add(1), **STATELESS), tmp_path / "bad"
    whole = recorded.read_bytes()

    def refused(content: bytes) -> str:
        bad.write_bytes(content)
        return udo("test", operator, "--replay", bad, code=2).err

    assert "truncated or not a file of `udo record`" in refused(whole[: len(whole) // 2])
    assert "truncated or not a file of `udo record`" in refused(b"{}")
    at = whole.index(b"UDOF")
    assert "damaged" in refused(whole[:at] + b"XXXX" + whole[at + 4 :])
    with zipfile.ZipFile(bad, "w") as other:
        other.writestr("x", "y")
    assert "has no recording.json" in udo("test", operator, "--replay", bad, code=2).err
    assert "there is no file" in udo("test", operator, "--replay", tmp_path / "none", code=2).err


def test_a_file_of_an_earlier_release_is_replayed(recorded: Path, udo: Shell, local: Callable[..., Path], tmp_path: Path) -> None:
    """Format version 1: the entries of the only slot are in no folder, and its frames in one entry."""
    with zipfile.ZipFile(recorded) as now, zipfile.ZipFile(tmp_path / "former", "w") as former:
        entries = {name.removeprefix("slots/0/"): now.read(name) for name in now.namelist() if name.startswith("slots/0/")}
        frames = [entries.pop(f"frames/{n}") for n in range(sum(name.startswith("frames/") for name in entries))]
        entries["recording.json"] = json.dumps(
            {**json.loads(now.read("recording.json")), **json.loads(entries["recording.json"])} | {"format_version": 1}
        ).encode()
        for name, data in {**entries, "frames": b"".join(frames)}.items():
            former.writestr(name, data)
    operator = local(add(1), **STATELESS)
    now, rows = replayed(udo, operator, recorded, code=6)
    before, former_rows = replayed(udo, operator, tmp_path / "former", code=6)
    assert former_rows == rows and len(rows) == 5
    assert (before["frames"], before["errors"]) == (now["frames"], now["errors"]) == (6, 1)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._fd, inside = pty.openpty()
        self.process = subprocess.Popen(command, env=env, stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
        os.close(inside)
        self._text = ""

    def until(self, text: str, timeout_s: float = 60.0) -> str:
        """Wait for `text`; return everything before it."""
        deadline = time.monotonic() + timeout_s
        while text not in self._text:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} within {timeout_s} s, but: {self._text}"
            try:
                self._text += os.read(self._fd, 4096).decode()
            except OSError:  # the command has ended
                pytest.fail(f"ended without {text!r}: {self._text}")
        before, _, self._text = self._text.partition(text)
        return before

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._fd, text.encode() + b"\n")

    def end(self) -> int:
        """Return its exit status; the terminal is closed."""
        try:
            return self.process.wait(bound(30))
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._fd)


def test_a_breakpoint_in_the_operator_opens_the_debugger_in_this_terminal(recorded: Path, udo: Shell, local: Callable[..., Path]) -> None:
    operator = local(OP.format(line="if event['a'] in (2, 4): breakpoint()", answer="event['a']"), **EVENTWISE)
    terminal = Terminal(udo.command("test", operator, "--replay", recorded), udo.environment())
    terminal.until("(Pdb) ")
    terminal.type("p event['a'] * 1000")
    assert "2000" in terminal.until("(Pdb) ")
    terminal.type("c")
    terminal.until("(Pdb) ")
    terminal.type("event['a'] = 77")
    terminal.until("(Pdb) ")
    terminal.type("q")
    terminal.until("3 frames, 3 events, 3 answers, 0 errors")
    terminal.until("interrupted")
    assert terminal.end() == 0


def test_a_debugger_is_fed_from_a_pipe_too(recorded: Path, udo: Shell, local: Callable[..., Path]) -> None:
    operator = local(OP.format(line="if event['a'] > 3: breakpoint()", answer="event['a']"), **EVENTWISE)
    done = udo("test", operator, "--replay", recorded, code=6, stdin="p event['a'] * 1000\nc\np event['a'] * 1000\nc\n")
    assert "4000" in done.err
    assert "5000" in done.err
    assert "6 frames, 5 events, 5 answers, 1 errors" in done.out


def test_pdb_opens_the_debugger_where_the_operator_raises(recorded: Path, udo: Shell, local: Callable[..., Path]) -> None:
    operator = local(OP.format(line="assert event['a'] != 3, 'three'", answer="event['a']"), **EVENTWISE)
    terminal = Terminal(udo.command("test", operator, "--replay", recorded, "--pdb"), udo.environment())
    assert 'the event: {"a": 3}' in terminal.until("(Pdb) ")
    terminal.type("p event, 'op.py' in __file__")
    assert "({'a': 3}, True)" in terminal.until("(Pdb) ")
    terminal.type("c")
    terminal.until("6 frames, 5 events, 2 answers, 2 errors, 2 skipped")
    assert terminal.end() == 6


def test_a_vectorised_operator_is_debugged_too(recorded: Path, udo: Shell, local: Callable[..., Path]) -> None:
    terminal = Terminal(udo.command("test", local(CAREFUL, **STATELESS), "--replay", recorded, "--pdb"), udo.environment())
    terminal.until("(Pdb) ")
    terminal.type("p batch.num_rows + 1000")
    assert "1001" in terminal.until("(Pdb) ")
    terminal.type("q")
    terminal.until("interrupted")
    assert terminal.end() == 0


def test_a_recording_of_nothing_known_is_refused_by_the_node(daemon: Daemon) -> None:
    with pytest.raises(NotFound):
        next(daemon.api.record("x", 1))
    daemon.deploy(add(1))
    with pytest.raises(UsageError, match="expected a recording time above"):
        next(daemon.api.record("d", 0))
