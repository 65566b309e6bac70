"""The engine's control of an operator's process: any fault of that process costs at most its frame, and the error says what happened."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from udo_runtime.child import host
from udo_runtime.child.process import Launch, Process
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.child.wire import Wire, encode
from udo_runtime.counters import Counters
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.session import Session

from tests.conftest import bound, wait_until
from tests.operators import child
from tests.support.selection import long
from udo_protocol import supervised
from udo_protocol.errors import OperatorError
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import operator_pb2 as pb
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

IN = pa.schema([("a", pa.int64())])
OUT = pa.schema([("b", pa.int64())])
KEYED = {"columns": ["a"]}
Make = Callable[..., ChildProcessor]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """made(keyed=..., answer_timeout_s=..., NAME=value) -> a processor of tests/operators/child.py, run after the shell command `first`."""
    there: list[ChildProcessor] = []

    def make(keyed: dict[str, Any] | None = None, answer_timeout_s: float = 60.0, first: str = "", **env: str) -> ChildProcessor:
        environment = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ["PATH"], **env}
        command = ("/bin/sh", "-c", f"{first or 'true'} && exec {sys.executable} {child.__file__}")
        launch = Launch(command, str(tmp_path), str(tmp_path), environment, answer_timeout_s=answer_timeout_s)
        there.append(ChildProcessor(launch, (IN, OUT), keyed, Context("t", "1")))
        return there[-1]

    yield make
    for processor in there:
        processor.close()


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"a": values}, schema=IN)


def answers(processor: ChildProcessor, *values: int) -> list[int]:
    return processor.named(batch(*values)).column("b").to_pylist()  # type: ignore[no-any-return]


def test_a_process_answers_batches_of_any_size_and_slices(made: Make) -> None:
    p = made()
    p.open()
    assert answers(p, 1, 2, 3) == [2, 3, 4]
    assert answers(p) == []
    assert p.named(batch(*range(100)).slice(40, 2)).column("b").to_pylist() == [41, 42]


def test_what_a_process_that_ends_leaves_behind_is_ended(made: Make, tmp_path: Path) -> None:
    p = made(first="sleep 300 & echo $! > left")
    p.open()
    left = psutil.Process(int((tmp_path / "left").read_text()))
    with pytest.raises(ProcessingError):
        answers(p, child.EXITS)
    wait_until(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE, 10, "what it has left to be ended")


@pytest.mark.parametrize("capabilities", ["rehearse", "rehearse,shared-memory"])
def test_large_batches_come_through_shared_memory_if_the_process_has_it(
    made: Make, capabilities: str, capfd: pytest.CaptureFixture[str]
) -> None:
    p = made(CAPABILITIES=capabilities)
    p.open()
    for first in (1000, 50_000):
        values = list(range(first, first + 20_000, 2))
        assert answers(p, *values) == [v + 1 for v in values]
    p.close()
    assert ("shared" in capfd.readouterr().err) == ("shared-memory" in capabilities)


def test_a_table_in_shared_memory_that_was_not_agreed_on_costs_its_frame(made: Make) -> None:
    p = made(CAPABILITIES="rehearse")
    p.open()
    with pytest.raises(ProcessingError, match="broke the operator protocol: a table in shared memory, which was not agreed on"):
        answers(p, child.SHARED_BYTES)
    assert answers(p, 1) == [2]


def test_what_user_code_raises_comes_with_class_message_trace_and_event_and_the_process_goes_on(made: Make) -> None:
    p = made()
    p.open()
    with pytest.raises(ProcessingError, match=r"TestError: 101 is not liked") as e:
        answers(p, 1, child.RAISES, 3)
    assert (e.value.traceback, e.value.event) == ("at test 101", '{"a": 101}')
    assert answers(p, 1) == [2]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (child.EXITS, "ended with exit status 3"),
        (child.KILLED, r"was killed by signal 9 \(SIGKILL\)"),
        long(child.REAL_TIME, "was killed by signal 35$"),
        (child.LIES_ID, "broke the operator protocol: expected a reply to request"),
        long(child.LIES_SCHEMA, "broke the operator protocol: its table ROWS"),
        long(child.LIES_BYTES, "broke the operator protocol: its table ROWS"),
        (child.BEHIND, "broke the operator protocol: a table at 16777216 of 64 bytes in shared memory, which does not lie"),
        long(child.IN_REQUESTS, "broke the operator protocol: a table at 0 of 64 bytes in shared memory"),
        long(child.OVER_THE_END, "broke the operator protocol: a table at 16777208 of 64 bytes in shared memory"),
        long(child.SHARED_BYTES, "broke the operator protocol: its table ROWS"),
        (child.HEADER, "broke the operator protocol: a header of 1048577 bytes; the bound is 1048576"),
        long(child.BODY, rf"broke the operator protocol: a body of {DEFAULT.answer_bytes + 1} bytes; the bound is {DEFAULT.answer_bytes}"),
        (child.TWICE, f"broke the operator protocol: two tables {pb.Part.ROWS}"),
        long(child.HALF_ENDS, "ended with exit status 4"),
    ],
)
def test_a_process_that_dies_exits_or_lies_costs_its_frame_only(made: Make, value: int, says: str) -> None:
    p = made(CAPABILITIES="shared-memory")
    p.open()
    with pytest.raises(ProcessingError, match=says) as e:
        answers(p, 1, value)
    if value == child.EXITS:
        assert "so long" in e.value.traceback  # the last lines of its output
    assert answers(p, 1) == [2]


def test_output_is_read_on_after_reading_it_raised(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    listen, raised = Process._listen, supervised.errors().get("operator-output", 0)
    failures = [RuntimeError("unexpected")]

    def once_raising(process: Process) -> None:
        if failures:
            raise failures.pop()
        listen(process)

    monkeypatch.setattr(Process, "_listen", once_raising)
    p = made()
    p.open()
    with pytest.raises(ProcessingError) as e:
        answers(p, child.EXITS)
    assert "so long" in e.value.traceback
    assert supervised.errors()["operator-output"] == raised + 1


def test_a_process_that_hangs_or_stops_in_a_message_is_ended_within_the_answer_timeout(made: Make) -> None:
    p = made(answer_timeout_s=1.0)
    for value in (child.HANGS, child.HALF):
        p.open()
        with pytest.raises(ProcessingError, match=r"hung: it did not answer in time, 0.8 s of 1 s \(limits.answer_timeout_s"):
            answers(p, value)
    assert made().named(batch(1)).num_rows == 1


def test_a_process_that_ends_again_and_again_is_started_after_growing_pauses(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    p = made(first="test -e good")
    for _ in range(5):
        with pytest.raises(ProcessingError, match="exit status 1 before it connected"):
            answers(p, 1)
    assert pauses == [0.05 * 2**n for n in range(7)] + [5.0]
    (tmp_path / "good").touch()
    assert (answers(p, 1), pauses[8:]) == ([2], [5.0])
    with pytest.raises(ProcessingError, match="exit status 3"):
        answers(p, child.EXITS)
    assert (answers(p, 1), pauses[9:]) == ([2], [0.05])  # after an answer the next process is started at once, but not the one after it


@pytest.mark.long
def test_a_process_that_opens_for_longer_than_it_may_take_to_answer_is_started_anew_when_it_ends(made: Make, tmp_path: Path) -> None:
    p = made(answer_timeout_s=4.0, first="sleep 3.5", MARK=str(tmp_path / "mark"))
    p.open()
    assert answers(p, 1, child.CRASHES_ONCE) == [2, 106]  # with a start in the middle of the frame
    p.look_after(counters := Counters())
    os.kill(first := counters.process.pid, signal.SIGKILL)
    wait_until(lambda: p.look_after(counters) or counters.process.pid not in (0, first), 20, "another process")
    assert answers(p, 1) == [2]


def test_a_frame_in_which_a_process_died_is_sent_again(made: Make, tmp_path: Path) -> None:
    p = made(MARK=str(tmp_path / "mark"))
    p.open()
    assert answers(p, 1, child.CRASHES_ONCE) == [2, 106]
    assert (tmp_path / "mark").exists()


def test_dead_letters_leave_out_the_event_that_ends_the_process(made: Make) -> None:
    p = made()
    p.open()
    rows = batch(1, child.KILLED, 3, child.RAISES, 5)
    with pytest.raises(ProcessingError) as e:
        p.once(rows)
    good, bad = p.without_bad(rows, e.value, 10)
    assert good.column("b").to_pylist() == [2, 4, 6]
    assert [b.row for b in bad] == [1, 3]


def test_an_open_that_fails_says_why(made: Make) -> None:
    with pytest.raises(ProcessingError, match="OpenError: no model") as e:
        made(OPEN_FAILS="no model").open()
    assert e.value.traceback == "at open"


def test_versions_and_capabilities_are_agreed_on_before_anything_starts(made: Make, caplog: pytest.LogCaptureFixture) -> None:
    for versions in ("7 7", "2 3", "0 0"):
        says = rf"speaks versions {versions.replace(' ', ' to ')} of the operator protocol \(test 1\), the engine speaks 1"
        with pytest.raises(OperatorError, match=says):
            made(SPEAKS=versions).open()
    made(SPEAKS="1 3").open()
    assert "opening in version 1" in caplog.text  # the highest version that both speak
    with pytest.raises(OperatorError, match="expected Hello first"):
        made(NO_HELLO="1").open()
    with pytest.raises(OperatorError, match=r"asks for keyed, which its code lacks \(test 1 says it can: migrate\)"):
        made(KEYED, CAPABILITIES="migrate").open()
    made(KEYED).check()


def test_a_command_that_does_not_speak_the_protocol_is_told_from_one_that_does(tmp_path: Path) -> None:
    for command, says in (
        (("/nonexistent/x",), "cannot be started"),
        (("/bin/sh", "-c", "echo no >&2; exit 5"), "exit status 5 before it"),
    ):
        p = ChildProcessor(Launch(command, str(tmp_path), str(tmp_path), {}), (IN, OUT), None, Context("t", "1"))
        with pytest.raises(OperatorError, match=says):
            p.open()


def test_keyed_states_go_with_the_events_and_come_back(made: Make) -> None:
    p = made(KEYED)
    p.open()
    keyed, session = p.keyed(KeyedConfig(("a",))), Session("s")
    for epoch, want in ((0, [1, 1, 2]), (1, [3, 2, 4])):
        header = Header(label=Label(run=1, epoch=epoch, attempt=1), groups=[0, 1])
        done = keyed.events(session, header, batch(7, 8, 7), pa.array([0, 1, 0], pa.int32()))
        assert done is not None and done.answer.column("b").to_pylist() == want
        keyed.end(session, header)
        keyed.complete(session, header)


def test_a_state_is_stored_and_handed_out_as_its_writer_wrote_it(made: Make) -> None:
    p = made(KEYED, WIDE="1")
    p.open()
    keyed, session = p.keyed(KeyedConfig(("a",))), Session("s")
    for epoch, want in ((0, 1), (1, 2)):
        header = Header(label=Label(run=1, epoch=epoch, attempt=1), groups=[0])
        done = keyed.events(session, header, batch(7), pa.array([0], pa.int32()))
        assert done is not None and done.answer.column("b").to_pylist() == [want]
        assert session.groups[0].values[7] == bytes.fromhex(f"81a16ed2{want:08x}")  # not the shortest form, as Python would write it
        keyed.end(session, header)
        keyed.complete(session, header)


def test_states_of_a_frame_that_failed_are_as_before_in_the_next_attempt(made: Make) -> None:
    p = made(KEYED)
    p.open()
    keyed, session = p.keyed(KeyedConfig(("a",))), Session("s")
    header = Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
    keyed.events(session, header, batch(7), pa.array([0], pa.int32()))
    for attempt, (value, says) in enumerate(
        (
            (child.LIES_KEY, "a key that is none of the 2"),
            (child.LATE_STATE, "a time of 1152921504606846976 µs since 1970, beyond the years 1 to 9999"),
            (child.LATE_TIMER, "a time of -1152921504606846976 µs since 1970"),
            (child.NO_TIME, "a timer without a time"),
            (child.KILLED, "SIGKILL"),
            (7, ""),
        ),
        2,
    ):
        header = Header(label=Label(run=1, epoch=0, attempt=attempt), groups=[0])
        rows, groups = batch(7, value), pa.array([0, 0], pa.int32())
        if says:
            with pytest.raises(ProcessingError, match=says):
                keyed.events(session, header, rows, groups)
        else:
            done = keyed.events(session, header, rows, groups)
            assert done is not None and done.answer.column("b").to_pylist() == [1, 2]


def test_log_records_of_other_threads_come_between_answers_and_never_within_one() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver, large = Wire(ours, 1 << 24), Wire(theirs, 1 << 24), batch(*range(500_000))
    answers, logs = 5, 1_000

    def send(message: pb.Message, times: int, *tables: tuple[int, pa.RecordBatch]) -> None:
        for _ in range(times):
            del message.parts[:]
            sender.send(encode(message, tables), None)

    log = pb.Message(log=pb.Log(level=pb.Log.INFO, message="beside"))
    threads = [Thread(target=send, args=(pb.Message(id=1), answers, (pb.Part.EVENTS, large))), Thread(target=send, args=(log, logs))]
    for thread in threads:
        thread.start()
    got = [receiver.receive(time.monotonic() + bound(20)) for _ in range(answers + logs)]
    for thread in threads:
        thread.join()
    assert sum(r.message.HasField("log") for r in got) == logs
    assert [r.table(pb.Part.EVENTS, IN) for r in got if r.message.id] == [large] * answers
    sender.close()
    receiver.close()
