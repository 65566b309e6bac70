"""The lane against real servers, with an operator in a thread."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.fuzz.frames import framed
from tests.conftest import wait_until
from tests.udo_interface.echo import EchoOperator, identity
from udo_interface.lane.lane import Collector, Sender, exchange
from udo_interface.lane.place import GRACE_MS, Place, ProgressDeadline, Stamp
from udo_interface.lane.split import SplitExchange
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_lane import StoreLane
from udo_protocol.clock import FakeClock
from udo_protocol.errors import LaneExpired, OperatorError, ProtocolError, SchemaError, StrayAnswer, UsageError, WaitTimeout
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import EVENT_CHARS, MESSAGE_CHARS, TRACEBACK_CHARS, SlotLimits
from udo_protocol.queue import frame, lane_end, route, slot
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.route import Route

KEYS = SlotKeys("fraud", 0)
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
PLACE = Place("fraud", "1", "n1", "udo:fraud:0", "fraud", partition=3, epoch=7)


def batch(first: int, rows: int = 2) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(range(first, first + rows)), "text": ["x"] * rows}, SCHEMA)


class Bench:
    """Lanes and operators of one test, stopped at its end."""

    def __init__(self, servers: Any) -> None:
        self.servers = servers
        self._operators: list[EchoOperator] = []

    def operator(self, answer: Callable[[pa.RecordBatch], Any] = lambda b: b, output: pa.Schema | None = None) -> EchoOperator:
        self._operators.append(EchoOperator(self.servers, KEYS, SCHEMA, output, answer))
        return self._operators[-1]

    def lane(
        self, place: Place = PLACE, limits: SlotLimits | None = None, clock: Any = None, expected: pa.Schema = SCHEMA, name: str = "l1"
    ) -> tuple[Sender, Collector]:
        end = lane_end.LaneEnd(self.servers.queue(), KEYS, name, limits or SlotLimits())
        sender = Sender(end, place, SCHEMA, clock)
        sender.open()
        return sender, Collector(end, sender, expected, clock)

    def stop(self) -> None:
        for o in self._operators:
            o.stop()


@pytest.fixture
def bench(servers: Any) -> Iterator[Bench]:
    b = Bench(servers)
    yield b
    b.stop()


def run(lane: tuple[Sender, Collector], batches: list[pa.RecordBatch], window: int = 4, **more: Any) -> list[pa.RecordBatch]:
    return [a for _, a in exchange(*lane, iter([(b, None) for b in batches]), window, **more)]


def test_answers_come_back_in_order_and_complete(bench: Bench) -> None:
    bench.operator()
    sent = [batch(i * 10) for i in range(50)]
    assert run(bench.lane(), sent) == sent


def test_no_more_frames_are_under_way_than_the_window_allows(bench: Bench) -> None:
    operator = bench.operator()
    operator.pause()
    taken: list[int] = []

    def source() -> Iterator[tuple[pa.RecordBatch, None]]:
        for i in range(10):
            taken.append(i)
            if len(taken) == 3:
                operator.go_on()  # the third frame fills the window: no further batch may be taken before an answer
            yield batch(i), None

    seen = []
    for _, answer in exchange(*bench.lane(), source(), 3):
        seen.append(answer)
        assert len(taken) - len(seen) < 3
    assert len(seen) == 10


def test_a_batch_above_the_frame_bound_travels_in_parts_and_loses_nothing(bench: Bench) -> None:
    operator = bench.operator()
    place = Place("fraud", "1", "n1", "udo:fraud:0", "fraud", frame_bytes=2000)
    answers = list(exchange(*bench.lane(place), iter([(batch(0, 500), "kept")]), 4))
    assert pa.Table.from_batches([a for _, a in answers]).column("id").to_pylist() == list(range(500))
    assert len(operator.frames) == 4
    assert [(asked.kept, asked.at) for asked, _ in answers] == [
        ("kept", at) for at in [sum(operator.frames[:i]) for i in range(len(operator.frames))]
    ]


def test_one_event_above_the_frame_bound_is_a_usage_error(bench: Bench) -> None:
    bench.operator()
    place = Place("fraud", "1", "n1", "udo:fraud:0", "fraud", frame_bytes=100)
    with pytest.raises(UsageError, match="one event takes .* the bound is 100"):
        run(bench.lane(place), [batch(0, 1)])


def test_an_answer_without_rows_is_an_empty_batch_of_the_output_schema(bench: Bench) -> None:
    bench.operator(lambda b: None)
    (answer,) = run(bench.lane(), [batch(0)])
    assert answer.num_rows == 0 and answer.schema == SCHEMA


def test_an_operator_error_tells_where_and_shows_the_traceback_and_the_event(bench: Bench) -> None:
    failure = frame.Failure(
        code="operator",
        message="ValueError: bad amount",
        traceback="Traceback ...\nValueError: bad amount",
        event='{"id": 3}',
        instance="i-1",
    )
    bench.operator(lambda b: failure if b.column(0)[0].as_py() == 2 else b)
    with pytest.raises(OperatorError) as caught:
        run(bench.lane(), [batch(i) for i in range(5)], window=1)
    text = str(caught.value)
    for part in (
        "fraud@1",
        "node n1",
        "udo:fraud:0",
        "epoch 7",
        "partition 3",
        "frame 3",
        "i-1",
        "ValueError: bad amount",
        '{"id": 3}',
        "Traceback",
    ):
        assert part in text


def test_an_answer_before_a_failure_is_handed_out_though_both_came_at_once(bench: Bench) -> None:
    bench.operator(lambda b: frame.Failure(code="operator", message="bad amount") if b.column(0)[0].as_py() == 1 else b)
    sender, collector = bench.lane()
    for i in (0, 1):
        [(_, pieces)] = sender.encode(batch(i))
        sender.push(pieces)
    sender.settle()
    wait_until(lambda: slot.slot_stats(bench.servers.queue(), KEYS).emitted >= 2, 10, "both answers")
    [answer] = collector.wait()
    assert answer.column("id").to_pylist() == [0, 1]
    for _ in range(2):
        with pytest.raises(OperatorError, match="bad amount"):
            collector.wait()


def test_a_skipped_frame_is_an_error_not_a_missing_answer(bench: Bench) -> None:
    bench.operator(lambda b: frame.SKIPPED)
    with pytest.raises(OperatorError, match="did not process frame 1"):
        run(bench.lane(), [batch(0)])


def test_an_answer_of_a_wider_version_is_conformed_to_the_planned_columns(bench: Bench) -> None:
    wider = pa.schema([("extra", pa.int8()), ("id", pa.int32()), ("text", pa.string())])
    bench.operator(lambda b: pa.RecordBatch.from_pydict({"extra": [1, 1], "id": b.column(0).to_pylist(), "text": ["y", "y"]}, wider), wider)
    (answer,) = run(bench.lane(), [batch(5)])
    assert answer.schema == SCHEMA and answer.column("id").to_pylist() == [5, 6]


def test_an_answer_with_other_columns_is_a_schema_error(bench: Bench) -> None:
    other = pa.schema([("id", pa.int64())])
    bench.operator(lambda b: b.select(["id"]), other)
    with pytest.raises(SchemaError, match="'text'.*missing"):
        run(bench.lane(), [batch(5)])


def crafted(number: int, lane: str = "l1", first: int = 0) -> bytes:
    """Return an answer of one row, from an operator that keeps no order."""
    header = frame.Header(lane=lane, number=number, kind=frame.ANSWER, version="1", schema=identity(SCHEMA))
    return b"".join(map(bytes, frame.encode(header, batch(first, 1))))


def sent(bench: Bench, frames: int) -> tuple[Sender, Collector]:
    """Return a lane that has sent this many frames, which nobody processes."""
    sender, collector = bench.lane()
    for n in range(frames):
        for _, pieces in sender.encode(batch(n)):
            sender.push(pieces)
    sender.settle()
    return sender, collector


def test_answers_in_any_order_and_twice_reach_their_own_frames_once(bench: Bench) -> None:
    _, collector = sent(bench, 4)
    conn = bench.servers.queue()
    conn.call("RPUSH", f"{KEYS}out:l1", *(crafted(n, first=10 * n) for n in (3, 2, 2)))
    assert collector.poll() == [], "that to the first frame is lacking"
    conn.call("RPUSH", f"{KEYS}out:l1", *(crafted(n, first=10 * n) for n in (1, 1, 3)))
    assert [b["id"][0].as_py() for b in collector.poll()] == [10, 20, 30]
    conn.call("RPUSH", f"{KEYS}out:l1", *(crafted(n, first=10 * n) for n in (2, 4)))
    assert [b["id"][0].as_py() for b in collector.wait()] == [40]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (crafted(1, "l2"), "lane l1 was given the answer to frame 1 of lane l2"),
        (crafted(3), "lane l1 was given the answer to frame 3; it has sent 2"),
        (crafted(0), "lane l1 was given the answer to frame 0; it has sent 2"),
    ],
)
def test_an_answer_that_is_nobodys_is_refused_and_given_to_nobody(bench: Bench, answer: bytes, why: str) -> None:
    _, collector = sent(bench, 2)
    bench.servers.queue().call("RPUSH", f"{KEYS}out:l1", answer)
    with pytest.raises(StrayAnswer, match=rf"operator fraud@1 .* answered with a malformed frame: {why}"):
        collector.poll()


def test_a_route_that_changes_under_load_loses_doubles_and_reorders_nothing(bench: Bench) -> None:
    operator, manager, stop = bench.operator(), bench.servers.queue(), threading.Event()

    def change() -> None:
        for version in itertools.count(1):
            route.change(manager, KEYS, Route(version, (KEYS.prefix,)))
            if stop.wait(0.0005):
                return

    changing = threading.Thread(target=change)
    changing.start()
    try:
        # Small and large frames travel differently; several are under way at once.
        sent = [batch(10_000 * n, 2_000 if n % 5 == 0 else 2) for n in range(400)]
        lane = bench.lane(limits=SlotLimits(retained_bytes=200_000))
        answered = run(lane, sent, window=8)
    finally:
        stop.set()
        changing.join()

    assert pa.Table.from_batches(answered) == pa.Table.from_batches(sent)
    assert [h.number for h in operator.headers] == list(range(1, len(sent) + 1))
    assert lane[0]._end.route.version > 10, "the lane was told of changes again and again"


def test_a_lane_waits_for_a_slot_that_is_still_to_be_told_of_its_route(bench: Bench) -> None:
    bench.operator()
    lane, manager = bench.lane(), bench.servers.queue()
    lane[0]._end.route = Route(5, (KEYS.prefix,))
    route.change(manager, KEYS, Route(4, (KEYS.prefix,)))
    telling = threading.Timer(0.05, lambda: route.change(manager, KEYS, Route(5, (KEYS.prefix,))))
    telling.start()
    assert len(run(lane, [batch(0), batch(2)])) == 2
    telling.join()


def test_a_lane_whose_events_go_to_another_slot_by_now_is_told_where(bench: Bench) -> None:
    sender, _ = bench.lane()
    route.change(bench.servers.queue(), KEYS, Route(1, ("udo:fraud:1:",)))
    [(_, pieces)] = sender.encode(batch(0))
    sender.push(pieces)
    with pytest.raises(ProtocolError, match="was opened to udo:fraud:0:, but its events now go to udo:fraud:1:"):
        sender.settle()


def test_a_full_log_is_waited_for_until_the_operator_makes_room(bench: Bench) -> None:
    operator = bench.operator()
    operator.pause()
    small = SlotLimits(retained_bytes=2000, reserve_bytes=0)

    class Opens(FakeClock):
        """Opens the gate at the third back-off pause, and lets the operator's thread run."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.slept) >= 3:
                operator.go_on()
                threading.Event().wait(0.001)

    clock = Opens()
    sent = [batch(i, 20) for i in range(20)]
    assert run(bench.lane(limits=small, clock=clock), sent, window=20) == sent
    assert clock.slept[:3] == [0.0005, 0.001, 0.0015]


def test_a_log_that_stays_full_ends_in_a_time_out_that_says_what_was_awaited(bench: Bench) -> None:
    clock = FakeClock()
    sender, _ = bench.lane(PLACE, SlotLimits(retained_bytes=10, reserve_bytes=0), clock)
    with pytest.raises(WaitTimeout, match="room for frame .* answered nothing for 75 s"):
        for i in range(2):
            for _, pieces in sender.encode(batch(i)):
                sender.push(pieces)
                sender.settle()


def test_a_silent_operator_ends_in_a_time_out_naming_the_frame(bench: Bench) -> None:
    clock = FakeClock()
    sender, collector = bench.lane(clock=clock)
    sender.push(next(sender.encode(batch(0)))[1])
    sender.settle()
    collector.due()
    with pytest.raises(WaitTimeout, match="the answer to frame 1.*udo logs fraud"):
        for _ in range(100):
            clock.now += 2
            collector.wait(1)
    assert clock.now - FakeClock().now == pytest.approx((PLACE.answer_timeout_ms + GRACE_MS) / 1000, abs=5)


def test_patience_lasts_while_the_slot_answers_other_lanes(bench: Bench) -> None:
    clock = FakeClock()
    conn = bench.servers.queue()
    patience = ProgressDeadline(lane_end.LaneEnd(conn, KEYS, "l1"), PLACE, clock)
    for i in range(10):
        clock.now += 50
        conn.call("SET", f"{KEYS}emitted", i)
        patience.check("x")
    clock.now += 80
    with pytest.raises(WaitTimeout):
        patience.check("x")


def test_a_slot_that_does_not_serve_fails_its_waiting_lanes_with_the_reason(bench: Bench) -> None:
    lane = bench.lane()
    status = {"code": "operator", "message": "cannot import model", "traceback": "Traceback: no module named model"}
    slot.set_status(bench.servers.queue(), KEYS, status)
    with pytest.raises(OperatorError, match="does not serve: cannot import model\n.*\n.*no module named model"):
        run(lane, [batch(0)])


def test_a_lane_beyond_its_lease_is_told_so(bench: Bench) -> None:
    sender, _ = bench.lane()
    bench.servers.queue().call("DEL", f"{KEYS}lane:l1")
    with pytest.raises(LaneExpired, match="lane l1 was removed: it was idle for more than 86400 s"):
        sender.push(next(sender.encode(batch(0)))[1])
        sender.settle()


def test_with_a_window_of_one_each_batch_is_answered_before_more_is_asked_for(bench: Bench) -> None:
    bench.operator()
    answered = 0

    def source() -> Iterator[tuple[pa.RecordBatch, None]]:
        for i in range(5):
            assert answered == i
            yield batch(i), None

    for _ in exchange(*bench.lane(), source(), 1):
        answered += 1
    assert answered == 5


def lie(message: Callable[[bytes], bytes], rows: int = 2, **header: Any) -> Callable[[pa.RecordBatch], bytes]:
    """Return the answer function of an operator that changes the Arrow message in its first answer."""

    def answer(events: pa.RecordBatch) -> bytes:
        made = frame.Header(lane="l1", number=1, kind=frame.ANSWER, rows=rows, schema=identity(SCHEMA), version="1", **header)
        return framed(made, message(events.serialize().to_pybytes()))

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lie(lambda m: m.replace(struct.pack("<iii", 0, 1, 2), struct.pack("<iii", 0, 1, 1 << 30))), "no record batch"),
        (lie(lambda m: m.replace(struct.pack("<q", 2), struct.pack("<q", 100_000_000)), 100_000_000), "cannot be 100000000 rows"),
        (lie(lambda m: m[:-8]), "truncated"),
        (lie(lambda m: b""), "has no body"),
        (lambda events: b"no frame at all", "expected a frame"),
    ],
)
def test_an_answer_that_lies_about_its_bytes_is_an_error_that_tells_where(bench: Bench, answer: Any, why: str) -> None:
    bench.operator(answer)
    with pytest.raises(ProtocolError, match=why) as caught:
        run(bench.lane(), [batch(0)])
    for part in ("operator fraud@1", "node n1", "slot udo:fraud:0", "epoch 7"):
        assert part in str(caught.value)


def test_a_schema_that_an_operator_put_under_another_ones_id_is_refused(bench: Bench) -> None:
    other = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
    bench.operator(lambda b: b.cast(other), output=other)
    queue = bench.servers.queue()
    queue.call("SET", f"{KEYS}schema:".encode() + identity(other), to_ipc(pa.schema([("id", pa.string()), ("text", pa.string())])))
    with pytest.raises(ProtocolError, match="is another one"):
        run(bench.lane(), [batch(0)])


def test_a_failure_that_its_process_did_not_cut_is_cut_for_who_sees_it(bench: Bench) -> None:
    failure = frame.Failure(code="operator", message="m" * 100_000, traceback="t" * 200_000, event="e" * 100_000)
    bench.operator(lambda b: failure)
    with pytest.raises(OperatorError) as caught:
        run(bench.lane(), [batch(0)])
    assert str(caught.value).count("characters cut") == 3
    assert len(str(caught.value)) < MESSAGE_CHARS + TRACEBACK_CHARS + EVENT_CHARS + 2000


def test_a_failure_beyond_the_bound_of_a_header_is_refused(bench: Bench) -> None:
    bench.operator(lambda b: frame.Failure(code="operator", message="m" * (2 << 20)))
    with pytest.raises(ProtocolError, match=r"operator fraud@1 .* a frame header of"):
        run(bench.lane(), [batch(0)])


def test_an_answer_beyond_its_bound_is_not_even_read(bench: Bench) -> None:
    bench.operator(lambda b: bytes(3 << 20))
    sender, collector = bench.lane()
    collector._end.conn.bulk_bytes = 1 << 20
    with pytest.raises(ProtocolError, match="a value of 3145728 bytes; the bound is 1048576"):
        run((sender, collector), [batch(0)])


class LyingState(SplitExchange):
    """A lane whose instance answers every request about state with this header."""

    lie = frame.Header(kind=frame.ANSWER)

    def ask(self, slot: int, kind: frame.Kind, batch: pa.RecordBatch | None = None, **fields: object) -> frame.Frame:
        return frame.Frame(self.lie)


def test_an_operator_that_lies_about_its_state_is_an_error_and_no_endless_conversation(bench: Bench, tmp_path: Path) -> None:
    sender, collector = bench.lane()
    sender.stamp = Stamp(1, 7, 0, (3, 4))
    split = LyingState([(sender, collector)], (0,), 4)
    lane = StoreLane(SessionStore(StoreLocation(str(tmp_path), ()), "fraud", "q"), split, PLACE, sender.stamp, 1, 1)
    with pytest.raises(ProtocolError, match=r"operator fraud@1 .* key group 3 has no last part"):
        lane.save()
    split.lie = frame.Header(kind=frame.ANSWER, groups=[3, 4], epochs=[1])
    with pytest.raises(ProtocolError, match=r"operator fraud@1 .* 2 key groups and the epochs of 1"):
        lane.restore()


def test_a_consumer_that_stops_early_voids_a_keyed_attempt(bench: Bench) -> None:
    operator = bench.operator()
    sender, collector = bench.lane()
    sender.stamp = Stamp(1, 7, 0, (3, 4))
    answers = SplitExchange([(sender, collector)], (0,), 2).run(iter([(batch(i), None) for i in range(20)]))
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    last = operator.headers[-1]
    assert (last.kind, last.void, list(last.groups)) == (frame.END, True, [3, 4])
    assert 1 < len(operator.headers) < 20
    assert collector.number == sender.number == last.number, "its answer was awaited: the attempt is complete"
