"""The Python runtime as a real process on real servers: answers, failures, promotion, leaving."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.fuzz.frames import framed
from tests.conftest import Servers, bound, require, wait_until
from tests.runtime.conftest import OUT, P, Process
from tests.support.stateless import collect, lane, send
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue import keys, lane_end, slot
from udo_protocol.queue.frame import ANSWER, DATA, ERROR, SKIPPED, Frame, Header, encode

Start = Callable[..., Process]
DOUBLE = "import pyarrow.compute as pc\ndef flag(batch): return {'b': pc.multiply(batch['a'], 2)}\n"
TRIPLE = DOUBLE.replace("2", "3")
YEAR_3000 = 32_503_680_000  # in seconds; nanoseconds end in 2262


def answer(servers: Servers, values: list[int]) -> list[dict[str, int]]:
    end = lane(servers)
    send(end, 1, values)
    [frame] = collect(end, 1)
    end.close()
    assert frame.header.kind == ANSWER, frame.header.failure.message
    return frame.batch(OUT).to_pylist()  # type: ignore[no-any-return]


def failure(servers: Servers, values: list[int]) -> Frame:
    end = lane(servers)
    send(end, 1, values)
    [frame] = collect(end, 1)
    assert frame.header.kind == ERROR
    return frame


def test_a_vectorised_operator_answers_in_its_output_schema(start: Start, servers: Servers) -> None:
    start(DOUBLE)
    assert answer(servers, [1, 2]) == [{"b": 2}, {"b": 4}]


def test_a_per_event_operator_opens_once_and_may_answer_any_number_of_events(start: Start, servers: Servers) -> None:
    start(
        "from udo_runtime import Operator\n"
        "import os\n"
        "class Op(Operator):\n"
        "    def open(self, ctx): self.n = len(os.environ['GREETING'])\n"
        "    def process(self, event, ctx):\n"
        "        for _ in range(event['a']): yield {'b': self.n}\n",
        "op:Op",
    )
    assert answer(servers, [0, 2]) == [{"b": 5}, {"b": 5}]


def test_frames_of_a_narrower_schema_are_widened(start: Start, servers: Servers) -> None:
    start(DOUBLE)
    narrow = pa.schema([("a", pa.int16())])
    end = lane(servers, schema=narrow)
    send(end, 1, [4], narrow)
    assert collect(end, 1)[0].batch(OUT).to_pylist() == [{"b": 8}]


def test_many_frames_are_answered_in_order_and_headers_come_back(start: Start, servers: Servers) -> None:
    start(DOUBLE)
    end = lane(servers)
    for n in range(1, 201):
        send(end, n, [n])
    frames = collect(end, 200)
    assert [f.header.number for f in frames] == list(range(1, 201))
    assert [f.batch(OUT).to_pylist()[0]["b"] for f in frames] == [2 * n for n in range(1, 201)]
    assert {(f.header.version, f.header.trace) for f in frames} == {("1", b"t")}


def test_an_exception_carries_the_operators_traceback_and_event_and_later_frames_are_skipped(start: Start, servers: Servers) -> None:
    start("def flag(batch):\n    if 13 in batch['a'].to_pylist(): raise ValueError('unlucky')\n    return {'b': batch['a']}\n")
    end = lane(servers)
    for n, values in enumerate(([1], [2, 13, 4], [5]), 1):
        send(end, n, values)
    ok, bad, later = collect(end, 3)
    assert (ok.header.kind, bad.header.kind, later.header.kind) == (ANSWER, ERROR, SKIPPED)
    f = bad.header.failure
    assert f.message == "ValueError: unlucky"
    assert f.event == '{"a": 13}'
    assert "op.py" in f.traceback
    assert "udo_runtime" not in f.traceback
    assert answer_on(servers, "other", [1]) == [{"b": 1}]


def answer_on(servers: Servers, name: str, values: list[int]) -> list[dict[str, int]]:
    end = lane(servers, name)
    send(end, 1, values)
    return collect(end, 1)[0].batch(OUT).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {'c': batch['a']}", "column 'b' (int64) is missing; there are: c"),
        ("return {'b': ['x'] * len(batch)}", "column 'b': expected int64, the operator answered 'x' (str) in row 0"),
        ("return 7", "expected a RecordBatch, Table or dict of columns, the operator answered int"),
        ("return {'b': [1, 2], 'c': [1]}", "not a record batch"),
    ],
)
def test_wrong_columns_and_types_are_named(start: Start, servers: Servers, body: str, message: str) -> None:
    start(f"def flag(batch):\n    {body}\n")
    f = failure(servers, [1]).header.failure
    assert (f.code, message in f.message) == ("schema", True), f.message


@pytest.mark.parametrize(
    ("value", "message"),
    [("{'c': 1}", "expected an event with the columns b; the operator answered c"), ("{'b': 'x'}", "column 'b': expected int64")],
)
def test_a_per_event_operators_wrong_answer_names_the_event(start: Start, servers: Servers, value: str, message: str) -> None:
    source = f"from udo_runtime import Operator\nclass Op(Operator):\n    def process(self, event, ctx): yield {value}\n"
    start(source, "op:Op")
    f = failure(servers, [1]).header.failure
    assert message in f.message
    assert f.event


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("import nonsense_module", "op:flag", "No module named 'nonsense_module'"),
        ("def other(b): pass", "op:flag", "has no 'flag'; it has: other"),
        ("flag = 3", "op:flag", "is a int; expected an @operator function"),
        ("class Op: pass", "op:Op", "is a class that does not derive from Operator; expected an @operator function or an Operator class"),
        ("import sys\nsys.exit(3)", "op:flag", "SystemExit: 3"),
        (
            "from udo_runtime import Operator\nclass Op(Operator):\n    def open(self, ctx): 1/0",
            "op:Op",
            "open() of t@1 failed: ZeroDivisionError",
        ),
    ],
)
def test_an_operator_that_cannot_be_loaded_says_why(start: Start, source: str, entry: str, message: str) -> None:
    p = start(source, entry)
    assert p.report is not None
    assert not p.report["ok"]
    assert message in p.report["error"]["message"]
    assert p.process.wait(bound(10)) == 1


def test_a_frame_of_another_schema_or_garbage_is_an_error_not_a_crash(start: Start, servers: Servers) -> None:
    start(DOUBLE)
    wrong = pa.schema([("z", pa.int64())])
    end = lane(servers, "w", wrong)
    send(end, 1, [1], wrong)
    assert "column 'a' (int64) is missing" in collect(end, 1)[0].header.failure.message
    other = lane(servers, "g")
    assert other.push(1, 0, [b"garbage"]).status == lane_end.Push.ACCEPTED
    assert "truncated" in collect(other, 1)[0].header.failure.message
    assert answer(servers, [1]) == [{"b": 2}]


def test_a_time_that_the_column_does_not_have_is_an_error_of_its_frame_or_of_the_operators_answer(start: Start, servers: Servers) -> None:
    seconds, nanoseconds = (pa.schema([(name, pa.timestamp(unit))]) for name, unit in (("a", "s"), ("b", "ns")))
    start("def flag(batch): return batch.rename_columns(['b'])", schemas=(seconds, nanoseconds))
    end = lane(servers, "answer", seconds)
    send(end, 1, [YEAR_3000], seconds)
    failure = collect(end, 1)[0].header.failure
    assert (failure.code, "column 'b': expected timestamp[ns]" in failure.message) == ("schema", True), failure.message

    start(DOUBLE, schemas=(pa.schema([("a", pa.timestamp("ns"))]), OUT))
    end = lane(servers, "frame", seconds)
    send(end, 1, [YEAR_3000], seconds)
    failure = collect(end, 1)[0].header.failure
    assert (failure.code, "column 'a': expected timestamp[ns]" in failure.message) == ("protocol", True), failure.message


def test_a_standby_takes_over_at_its_promotion_and_the_former_owner_leaves(start: Start, servers: Servers) -> None:
    old = start(DOUBLE)
    assert answer(servers, [1]) == [{"b": 2}]
    new = start(TRIPLE, promote=False)
    assert answer(servers, [1]) == [{"b": 2}]
    slot.promote(servers.state(), servers.queue(), P, new.token)
    assert answer(servers, [1]) == [{"b": 3}]
    assert old.process.wait(bound(60)) == 0  # it runs at the lowest priority, after all other work of the machine


def test_sigterm_closes_the_operator_and_leaves(start: Start, servers: Servers) -> None:
    p = start(
        "from udo_runtime import Operator\nclass Op(Operator):\n"
        "    def process_batch(self, batch, ctx): return {'b': batch['a']}\n"
        "    def close(self): print('closed', flush=True)\n",
        "op:Op",
    )
    assert answer(servers, [1]) == [{"b": 1}]
    p.process.send_signal(signal.SIGTERM)
    assert p.process.wait(bound(10)) == 0
    assert "closed" in p.log.read_text()


def test_without_the_node_managers_heartbeat_it_stops_itself(start: Start, servers: Servers) -> None:
    p = start(DOUBLE, park_ms=20)
    servers.queue().call("DEL", keys.HEARTBEAT)
    assert p.process.wait(bound(20)) == 3
    assert "no heartbeat" in p.log.read_text()


def test_counters_are_published_when_it_goes_idle(start: Start, servers: Servers) -> None:
    start(DOUBLE)
    answer(servers, [1, 2, 3])
    queue = servers.queue()
    wait_until(lambda: slot.read_stats(queue, P, "i0").get("events_in") == 3, 5, "publishing of counters")


def test_logging_and_prints_reach_the_log(start: Start, servers: Servers) -> None:
    p = start("import logging\ndef flag(batch):\n    print('printed'); logging.warning('logged'); return {'b': batch['a']}\n")
    answer(servers, [1])
    p.process.send_signal(signal.SIGTERM)
    p.process.wait(bound(10))
    assert "printed" in p.log.read_text()
    assert "WARNING root logged" in p.log.read_text()


@pytest.mark.parametrize("own", [True, False])
def test_an_instance_that_was_replaced_does_not_slow_down_the_session_it_was_started_from(start: Start, own: bool) -> None:
    group = Path("/proc/self/autogroup")
    if not group.exists():
        require("autogroup", "the kernel does not share the processor by sessions")
    before = group.read_text()
    first, second = start(DOUBLE, session=own), start(TRIPLE)
    assert first.process.wait(bound(30)) == 0
    assert second.process.poll() is None
    assert group.read_text() == before


GIANT = "def flag(batch): raise ValueError('<' + 'x' * 200_000_000 + '>')\n"
TEXT = pa.schema([("a", pa.string())])
SHOWS = "def flag(batch): return {'b': [len(v) for v in batch['a'].to_pylist()]}\n"
SHOWS_EACH = """
from udo_runtime import Operator
class flag(Operator):
    def process(self, event, ctx): yield {'b': len(event['a'])}
"""


def send_text(end: lane_end.LaneEnd, values: list[bytes]) -> None:
    """Send a frame of text that may be invalid UTF-8."""
    batch = pa.record_batch([pa.array(values, pa.binary())], names=["a"])
    header = Header(lane=end.lane, number=1, kind=DATA, schema=schema_id(to_ipc(TEXT)))
    assert end.push(1, 0, encode(header, batch)).status == lane_end.Push.ACCEPTED


def test_an_error_of_200_megabytes_is_answered_cut(start: Start, servers: Servers) -> None:
    start(GIANT)
    shown = failure(servers, [1]).header.failure
    assert shown.message.startswith("ValueError: <x") and shown.message.endswith("x>") and "characters cut" in shown.message
    assert "op.py" in shown.traceback and "characters cut" in shown.traceback
    assert shown.ByteSize() < 100_000


def test_an_answer_that_nobody_would_take_is_an_error_that_says_so(start: Start, servers: Servers) -> None:
    start("import pyarrow as pa\ndef flag(batch): return {'b': pa.repeat(1, 40_000_000)}\n")
    assert "the bound is 268435456" in failure(servers, [1]).header.failure.message


@pytest.mark.parametrize("source", [SHOWS, SHOWS_EACH], ids=["batch", "each"])
def test_a_frame_whose_text_ends_elsewhere_never_reaches_user_code(start: Start, servers: Servers, source: str) -> None:
    running = start(source, schemas=(TEXT, OUT))
    end = lane(servers, schema=TEXT)
    before, _, after = pa.record_batch({"a": ["x" * 12345]}).serialize().to_pybytes().rpartition(struct.pack("<ii", 0, 12345))
    header = Header(lane=end.lane, number=1, kind=DATA, rows=1, schema=schema_id(to_ipc(TEXT)))
    end.push(1, 0, [framed(header, before + struct.pack("<ii", 0, 1 << 30) + after)])
    [frame] = collect(end, 1)
    assert (frame.header.kind, frame.header.failure.code) == (ERROR, "protocol")
    assert running.process.poll() is None


@pytest.mark.parametrize(("source", "code"), [(SHOWS, "protocol"), (SHOWS_EACH, "operator")], ids=["batch", "each"])
def test_text_that_is_none_is_an_error_of_the_frame_or_where_events_come_singly_of_user_code(
    start: Start, servers: Servers, source: str, code: str
) -> None:
    start(source, schemas=(TEXT, OUT))
    end = lane(servers, schema=TEXT)
    send_text(end, [b"good", b"\xff\xff"])
    [frame] = collect(end, 1)
    assert (frame.header.kind, frame.header.failure.code) == (ERROR, code)


def test_an_event_whose_text_is_none_becomes_a_dead_letter_and_the_others_are_answered(start: Start, servers: Servers) -> None:
    start(SHOWS_EACH, schemas=(TEXT, OUT), policy="dead-letter")
    end = lane(servers, schema=TEXT)
    send_text(end, [b"good", b"\xff\xff", b"better"])
    [frame] = collect(end, 1)
    assert frame.header.kind == ANSWER, frame.header.failure.message
    assert frame.batch(OUT).to_pylist() == [{"b": 4}, {"b": 6}]
    assert servers.state().call("HLEN", f"{P}dead") == 1
