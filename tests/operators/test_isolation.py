"""A Python operator with a process of its own (isolation = "process") answers as in its engine's process, and keeps its state."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from udo_protocol.errors import UdoError
from udo_protocol.queue.frame import ERROR

OWN = {"isolation": "process"}
COUNT_FRAMES = """
import pyarrow as pa
from udo_runtime import Operator
class Count(Operator):
    def process_keys(self, keys, events, states, ctx):
        counts, answers = states.column("n", pa.int64(), 0).to_pylist(), []
        for number in keys.index.to_pylist():
            counts[number] += 1
            answers.append(counts[number])
        states.put("n", counts)
        return {"b": answers}
"""
Open = Callable[..., Lane]
# Answers whether it runs in its engine's process.
WHERE = """
import sys
from udo_runtime import operator
@operator
def run(batch):
    return {"b": ["udo_runtime.main" in sys.modules] * batch.num_rows}
"""
FILES = """
import os
from pathlib import Path
from udo_runtime import Operator
class Files(Operator):
    def open(self, ctx):
        self.plus = int(Path("config/plus").read_text()) + int((ctx.directory / "config/plus").read_text()) + int(os.environ["MORE"])
    def process(self, event, ctx):
        ctx.log.warning("got %d", event["a"])
        print("printed", event["a"])
        if event["a"] == 13:
            raise ValueError("13 is not liked")
        yield {"b": event["a"] + self.plus}
"""
LOUD = """
from udo_runtime import Operator
class Loud(Operator):
    def process(self, event, ctx):
        ctx.log.warning("long %s", "x" * (2 << 20))
        ctx.log.warning("half \\ud800 of a pair")
        yield {"b": event["a"]}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def updated(daemon: Daemon, version: str, **manifest: Any) -> None:
    digest = put_image(daemon.home, COUNT, version=version, **{**KEYED, **manifest})
    last = list(daemon.api.update("d", version, digest))[-1]
    assert last.phase == "done", last


def test_a_call_is_answered_by_a_process_without_an_engine_in_it(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(WHERE, output={"b": "bool"}, **OWN)
    assert lane().ask(1) is False


def warm_engine(daemon: Daemon) -> str:
    """Wait for a single warm engine, and return its instance's name."""

    def waiting() -> list[str]:
        return [r["handle"]["instance"] for r in daemon.records() if (r["kind"], r["state"]) == ("engine", "warm")]

    wait_until(lambda: len(waiting()) == 1, 20, "one warm engine")
    return waiting()[0]


def test_an_update_takes_a_warm_engine_also_one_that_a_former_manager_has_started(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--warm", "1")
    assert not any(r["kind"] == "engine" for r in daemon.records())  # no deployment asks for one yet
    daemon.deploy(WHERE, output={"b": "bool"}, **OWN)
    for version in ("2", "3"):
        engine = warm_engine(daemon)
        digest = put_image(daemon.home, WHERE, version=version, output={"b": "bool"}, **OWN)
        assert list(daemon.api.update("d", version, digest))[-1].phase == "done"
        assert engine in [r["handle"]["instance"] for r in daemon.records() if r.get("version") == version]
        if version == "2":
            engine = warm_engine(daemon)
            daemon.kill()
            daemon.start("--warm", "1")
            assert warm_engine(daemon) == engine


def test_an_update_into_a_process_of_its_own_and_back_keeps_the_state(daemon: Daemon) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]
    updated(daemon, "2", **OWN)
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1, 2, 3]) == [3, 2, 1]
    updated(daemon, "3")
    assert Attempt.at_node(daemon.api, "d", "s", 2, 3).run([1, 2, 3]) == [4, 3, 2]


@pytest.mark.long
def test_an_update_to_whole_frames_and_on_to_a_process_of_their_own_keeps_the_state(daemon: Daemon) -> None:
    daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]
    for epoch, own in ((1, {}), (2, OWN)):
        digest = put_image(daemon.home, COUNT_FRAMES, version=f"{epoch + 1}", **{**KEYED, **own})
        last = list(daemon.api.update("d", f"{epoch + 1}", digest))[-1]
        assert last.phase == "done", last
        assert Attempt.at_node(daemon.api, "d", "s", epoch, 1).run([1, 2, 1]) == [2 * epoch + 1, epoch + 1, 2 * epoch + 2]


def test_its_files_variables_logs_and_errors_are_as_in_the_engines_process(daemon: Daemon, lane: Open) -> None:
    config = json.dumps({"files": {"config/plus": "NDE="}, "env": {"MORE": "100"}})
    daemon.deploy(FILES, entry="op:Files", config_json=config, **OWN)
    caller = lane()
    assert caller.ask(1) == 183
    caller.send([1, 13])
    failed = caller.receive().header
    assert failed.kind == ERROR and failed.failure.event == '{"a": 13}'
    assert "13 is not liked" in failed.failure.message and "op.py" in failed.failure.traceback
    logged = lambda: "\n".join(line.text for line in daemon.api.logs("d"))  # noqa: E731
    wait_until(lambda: "WARNING t got 13" in logged() and "printed 13" in logged(), 20, "what it logged and printed")


def test_a_log_line_of_any_size_and_any_text_arrives(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(LOUD, entry="op:Loud", **OWN)
    assert lane().ask(1) == 1
    logged = lambda: "\n".join(line.text for line in daemon.api.logs("d"))  # noqa: E731
    wait_until(lambda: "WARNING t long xxx" in logged() and "WARNING t half \\ud800 of a pair" in logged(), 20, "what it logged")


def test_dependencies_may_contradict_what_the_engine_has_loaded(daemon: Daemon, lane: Open) -> None:
    source = "import msgpack\n" + add(1).replace("+ 1", "+ msgpack.OWN")
    daemon.deploy(source, dependencies={"msgpack/__init__.py": "OWN = 7"}, **OWN)
    assert lane().ask(1) == 8


def test_code_that_cannot_be_imported_is_said_with_its_traceback(daemon: Daemon) -> None:
    with pytest.raises(UdoError, match=r"cannot import 'op' of t@1: NameError: (.|\n)*no_such_name") as e:
        daemon.deploy("no_such_name", **OWN)
    assert "op.py" in str(e.value)


MORTAL = """
import os, sys
from udo_runtime import operator
@operator
def run(batch):
    if batch.column("a")[0].as_py() == 0:
        print("no more of this", flush=True)
        sys.stdout.flush()
        os._exit(3)
    return {"b": batch.column("a")}
"""


def test_a_process_that_dies_while_nothing_is_to_do_is_seen_and_started_again(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(MORTAL, **OWN)
    wait_until(lambda: daemon.slot().operator_pid > 0, 20, "its process to be known")
    first = daemon.slot()
    assert (first.restarts, first.last_error) == (0, "")
    os.kill(first.operator_pid, signal.SIGKILL)
    wait_until(lambda: daemon.slot().operator_pid not in (0, first.operator_pid), 20, "another process")
    now = daemon.slot()
    assert (now.instance, now.pid, now.restarts) == (first.instance, first.pid, 1)
    assert re.search(rf"the operator's process {first.operator_pid} was killed by signal 9 \(SIGKILL\)", now.last_error)
    assert now.last_error in " ".join(line.text for line in daemon.api.logs("d"))
    assert lane().ask(1) == 1
    assert [s.restarts for s in daemon.api.stats("d").slots] == [1]


def test_a_process_that_dies_on_its_events_is_seen_with_its_last_words(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(MORTAL, **OWN)
    lane().send([0])
    wait_until(lambda: daemon.slot().restarts >= 2, 30, "both attempts to be counted")
    assert re.search(r"the operator's process \d+ ended with exit status 3\nno more of this", daemon.slot().last_error)
    assert lane().ask(1) == 1
    assert "ended with exit status 3" in " ".join(line.text for line in daemon.api.logs("d"))


@pytest.mark.long
def test_udo_test_runs_it_in_a_process_of_its_own(shell: Shell, tmp_path: Path) -> None:
    made = tmp_path / "where"
    made.mkdir()
    (made / "op.py").write_text(WHERE)
    text = 'name = "where"\nversion = "1"\nentry = "op:run"\nisolation = "process"\n[input]\na = "int64"\n[output]\nb = "bool"\n'
    (made / "operator.toml").write_text(text)
    (made / "events.json").write_text('[{"a": 1}]')
    assert shell("test", made, "--json").json["answers"] == [{"b": False}]
    assert "has no 'run'" in _broken(made, shell, "x = 1")
    (made / "operator.toml").write_text(text.replace("[input]", 'network = ["a.example.org:443"]\n[input]'))
    assert "an operator in a process of its own" in shell("push", made, "--dry-run", code=2).err


def _broken(made: Path, shell: Shell, source: str) -> str:
    """The error output of a push of this code."""
    (made / "op.py").write_text(source)
    return shell("push", made, "--dry-run", code=6).err


HANGS = """
import time
from udo_runtime import operator
@operator
def run(batch):
    if batch.column("a")[0].as_py() == 0:
        time.sleep(600)
    return {"b": batch.column("a")}
"""


@pytest.mark.long
def test_the_time_to_answer_that_its_deployment_gives_is_that_of_its_process(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(HANGS, config_json=json.dumps({"limits": {"answer_timeout_ms": 5000}}), **OWN)
    before = daemon.slot()
    lane().send([0])
    assert lane().ask(1) == 1
    assert "it did not answer in time, 4 s of 5 s" in daemon.slot().last_error
    assert daemon.slot().instance == before.instance


@pytest.mark.long
def test_an_engine_that_answers_nothing_has_the_time_of_its_frame_and_of_two_starts(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(HANGS, config_json=json.dumps({"limits": {"answer_timeout_ms": 1000}}), limits={"open_timeout_s": 10}, **OWN)
    caller = lane()
    assert caller.ask(1) == 1
    os.kill(daemon.slot().pid, signal.SIGSTOP)
    caller.send([2])
    failed = caller.receive(60).header.failure.message
    assert "within 21 s (limits.answer_timeout_s and two limits.open_timeout_s)" in failed
    assert lane().ask(3) == 3
