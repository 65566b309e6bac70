"""The engine-free client against a real node manager: the paper's four calls, Algorithm 1, and failures."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conftest import bound, wait_until
from tests.support.lanes import opened
from udo_interface import connect
from udo_interface.client import Client, EventsLost
from udo_interface.lane.channel import Channel
from udo_protocol.errors import NotFound, OperatorError, SchemaError, UdoError, Unavailable, UsageError, WaitTimeout
from udo_protocol.node.api import connect_node
from udo_protocol.queue.keys import SlotKeys

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform

HOLDS = """
import pathlib, time
from udo_runtime import operator
@operator
def run(batch):
    print("holding", flush=True)
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.005)
    return batch
"""
COUNTS = """
import time
from udo_runtime import Operator
class run(Operator):
    def open(self, ctx): self.n = 0
    def process(self, event, ctx):
        time.sleep(0.005)
        self.n += 1
        yield {"id": event["id"], "frame": self.n}
"""
THROWS = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        if event["id"] == 7:
            raise ValueError("seven")
        yield event
"""


@pytest.fixture(scope="module")
def forward(platform: Platform) -> str:
    return platform.operator()


@pytest.fixture
def gate(platform: Platform) -> Iterator[tuple[str, Path]]:
    """An operator that holds every frame until `go` exists: (deployment, go)."""
    go = platform.sign()
    yield platform.operator(HOLDS.format(go=str(go))), go
    go.touch()


def test_a_channel_that_raises_what_nobody_expected_tells_its_callers(
    platform: Platform, forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: Channel) -> None:
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(Channel, "_work", work)
    client = Client(platform.node)
    client.request_operator(forward)
    with pytest.raises(UdoError, match="RuntimeError: nobody expects this"):
        client.send({"id": 1})
        client.flush()
    with pytest.raises(UdoError, match="RuntimeError: nobody expects this"):
        client.close()


def test_the_four_calls_of_the_paper(platform: Platform, forward: str) -> None:
    client = Client(platform.node)
    told: list[str] = []
    address = client.request_operator(forward, told.append)
    assert told == [address] and address.startswith(f"udo:{forward}:0:")
    first: list[Any] = []
    second: list[Any] = []
    client.add_listener(first.append, address)
    client.add_listener(second.append)
    client.send_event(address, {"id": 1})
    client.flush()
    client.remove_listener(second.append)
    client.send({"id": 2})
    client.close()
    assert (first, second) == ([{"id": 1}, {"id": 2}], [{"id": 1}])


@pytest.mark.parametrize("options", [{}, {"batch_events": 1}, {"linger_ms": 5.0}, {"buffer_events": 10, "window": 1}])
def test_every_event_is_answered_once_in_order_whatever_the_batching(platform: Platform, forward: str, options: dict[str, Any]) -> None:
    got: list[int] = []
    with connect(forward, node=platform.node, **options) as client:
        client.add_listener(lambda e: got.append(e["id"]))
        for i in range(2000):
            client.send({"id": i})
    assert got == list(range(2000))


def test_events_that_gather_travel_in_one_frame(platform: Platform, forward: str) -> None:
    frames: list[int] = []
    with connect(forward, node=platform.node, linger_ms=2000, batch_events=500) as client:
        client.add_listener(lambda b: frames.append(b.num_rows), batches=True)
        for i in range(1000):
            client.send({"id": i})
    assert frames == [500, 500]


def test_record_batches_go_through_as_they_are(platform: Platform, forward: str) -> None:
    got: list[pa.RecordBatch] = []
    with connect(forward, node=platform.node) as client:
        client.add_listener(got.append, batches=True)
        client.send_batch(pa.RecordBatch.from_pydict({"x": ["a", "b"], "id": pa.array([1, 2], pa.int16())}))
        with pytest.raises(SchemaError, match="lacks id; it has x"):
            client.send_batch(pa.RecordBatch.from_pydict({"x": ["a"]}))
    assert [b.to_pydict() for b in got] == [{"id": [1, 2]}]


def test_record_batches_go_ahead_of_answers_up_to_the_window(platform: Platform, gate: tuple[str, Path]) -> None:
    name, go = gate
    with connect(name, node=platform.node, window=3) as client:
        for i in range(5):
            client.send_batch(pa.RecordBatch.from_pydict({"id": [i]}))

        def under_way() -> int:
            return next(s.depth_frames for s in connect_node(platform.node).status().slots if s.deployment == name)

        wait_until(lambda: under_way() == 3, 20, "three frames to be under way")
        go.touch()


def test_many_threads_may_send(platform: Platform, forward: str) -> None:
    got: list[int] = []
    with connect(forward, node=platform.node) as client:
        client.add_listener(lambda e: got.append(e["id"]))
        threads = [threading.Thread(target=lambda k=k: [client.send({"id": 1000 * k + i}) for i in range(500)]) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for k in range(4):
        assert [i for i in got if i // 1000 == k] == list(range(1000 * k, 1000 * k + 500))


def test_the_buffer_is_bounded_and_sending_waits_for_room(platform: Platform, gate: tuple[str, Path]) -> None:
    name, go = gate
    got: list[Any] = []
    client = connect(name, node=platform.node, batch_events=1, window=1, buffer_events=3)
    client.add_listener(got.append)
    client.send({"id": 0})
    wait_until(lambda: platform.said(name, "holding"), 20, "the operator to hold the frame")
    sender = threading.Thread(target=lambda: [client.send({"id": i}) for i in range(1, 11)])
    sender.start()
    with pytest.raises(WaitTimeout, match="waited 0.05 s for answers to all events"):
        client.flush(0.05)
    assert sender.is_alive()
    go.touch()
    sender.join(bound(20))
    client.close()
    assert [e["id"] for e in got] == list(range(11))


def test_close_drains_what_was_sent(platform: Platform, gate: tuple[str, Path]) -> None:
    name, go = gate
    got: list[Any] = []
    client = connect(name, node=platform.node)
    client.add_listener(got.append)
    for i in range(100):
        client.send({"id": i})
    wait_until(lambda: platform.said(name, "holding"), 20, "the operator to hold a frame")
    threading.Timer(0.05, go.touch).start()
    client.close()
    assert len(got) == 100
    with pytest.raises(UsageError, match="closed"):
        client.send({"id": 1})
    client.close()


def test_an_operator_error_reaches_the_next_call_with_traceback_and_event(platform: Platform) -> None:
    client = connect(platform.operator(THROWS), node=platform.node)
    client.send({"id": 7})
    with pytest.raises(OperatorError, match="ValueError: seven") as caught:
        client.flush(20)
    assert '"id": 7' in str(caught.value) and "Traceback" in str(caught.value)
    with pytest.raises(OperatorError):
        client.send({"id": 8})
    with pytest.raises(OperatorError):
        client.close()


def test_an_event_that_does_not_fit_is_told_with_the_event(platform: Platform, forward: str) -> None:
    client = connect(forward, node=platform.node)
    with pytest.raises(SchemaError, match="the event lacks id; expected id, got nr"):
        client.send({"nr": 1})
    client.send({"id": "seven"})
    with pytest.raises(SchemaError, match="column 'id' expects int64.*the event: {'id': 'seven'}"):
        client.flush(20)
    with pytest.raises(SchemaError):
        client.close()


def test_a_listener_that_fails_does_not_keep_answers_from_others(platform: Platform, forward: str) -> None:
    got: list[Any] = []
    with connect(forward, node=platform.node) as client:
        client.add_listener(lambda e: 1 // 0)
        client.add_listener(got.append)
        client.send({"id": 1})
    assert got == [{"id": 1}]


def test_a_listener_that_waits_for_its_own_channel_is_refused_at_once(platform: Platform, forward: str) -> None:
    got: list[int] = []
    refused: list[str] = []
    with connect(forward, node=platform.node, buffer_events=1) as client:

        def listen(event: dict[str, int]) -> None:
            got.append(event["id"])
            for wait in (lambda: client.flush(0.1), client.close, *[lambda: client.send({"id": 2})] * 2) if event["id"] == 1 else ():
                try:
                    wait()
                except UsageError as e:
                    refused.append(str(e).partition("cannot wait for ")[2].partition(":")[0])

        client.add_listener(listen)
        client.send({"id": 1})
        client.flush()
    assert refused == ["answers to all events", "the end of the channel", "room in the send buffer"]
    assert got == [1, 2]


def test_an_unknown_operator_and_a_missing_node_manager_are_told_at_once(platform: Platform, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        connect("no-such-operator", node=platform.node)
    with pytest.raises(Unavailable, match="none.sock"):
        connect("x", node=str(tmp_path / "none.sock"))


def test_a_lost_queue_server_names_what_was_lost(platform: Platform, gate: tuple[str, Path]) -> None:
    name, go = gate
    client = connect(name, node=platform.node, batch_events=4, window=2)
    for i in range(20):
        client.send({"id": i})
    wait_until(lambda: platform.said(name, "holding"), 20, "the operator to hold a frame")
    platform.kill_queue_server()
    with pytest.raises(EventsLost) as caught:
        client.flush(20)
    lost = caught.value
    rows = [r["id"] for b in lost.unanswered for r in b.to_pylist()]
    assert rows == list(range(len(rows))) and len(rows) + lost.unsent == 20
    assert f"events 1 to {len(rows)}" in str(lost) and f"{lost.unsent} more were buffered" in str(lost)
    with pytest.raises(EventsLost):
        client.close()
    go.touch()
    got: list[Any] = []
    with connect(name, node=platform.node) as again:  # waits until the node manager has replaced the server
        again.add_listener(got.append)
        for b in lost.unanswered:
            again.send_batch(b)
    assert [e["id"] for e in got] == rows


def test_a_log_that_its_operator_broke_names_what_was_lost(platform: Platform, gate: tuple[str, Path]) -> None:
    name, _ = gate
    client = connect(name, node=platform.node, batch_events=4, window=2)
    for i in range(20):
        client.send({"id": i})
    wait_until(lambda: platform.said(name, "holding"), 20, "the operator to hold a frame")
    with closing(platform.queue()) as queue:
        queue.call("SET", f"{SlotKeys(name, 0)}emitted", "garbage")

    with pytest.raises(EventsLost, match="broke") as caught:
        client.flush(30)

    rows = [r["id"] for b in caught.value.unanswered for r in b.to_pylist()]
    assert rows == list(range(len(rows))) and len(rows) + caught.value.unsent == 20
    with pytest.raises(EventsLost):
        client.close()


def test_an_event_that_the_operator_fails_on_leaves_the_client_with_all_that_was_not_answered(platform: Platform) -> None:
    client = connect(platform.operator(THROWS), node=platform.node, window=2)
    got: list[Any] = []
    client.add_listener(got.append)
    client.send({"id": 1})
    client.flush()
    batches = [pa.record_batch({"id": [n, n + 1]}) for n in (5, 7, 9, 11, 13)]
    for batch in batches:
        client.send_batch(batch)
    with pytest.raises(OperatorError, match="seven") as caught:
        client.flush()
    [note] = caught.value.__notes__
    sent = client.unanswered()
    rows = 2 * len(sent)
    assert sent == batches[1 : 1 + len(sent)] and [e["id"] for e in got] == [1, 5, 6]
    assert f"events 4 to {3 + rows} ({rows} in {len(sent)} frames)" in note and f"{8 - rows} more were buffered" in note
    with pytest.raises(OperatorError, match="seven"):
        client.close()


def test_the_client_needs_no_spark() -> None:
    code = "import sys; from udo_interface import connect; connect; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=bound(60))


def test_work_of_a_caller_that_was_killed_is_not_done(platform: Platform, gate: tuple[str, Path]) -> None:
    """As after a cancelled query, whose Python workers Spark kills: nobody closes their lanes, and others wait behind their frames."""
    deployment, go = gate
    more = platform.sign()  # the others are sent once the first is under way: frames taken from the queue with it would be processed
    program = f"""
import pathlib, time
from udo_interface import connect
client = connect({deployment!r}, node={platform.node!r}, window=8)
import pyarrow as pa
for n in range(8):
    client.send_batch(pa.record_batch({{"id": [n]}}))
    while not pathlib.Path({str(more)!r}).exists(): time.sleep(0.005)
client.flush()
"""
    queue, p = platform.queue(), SlotKeys(deployment, 0)
    with closing(queue), subprocess.Popen([sys.executable, "-c", program]) as caller:
        try:
            wait_until(lambda: platform.said(deployment, "holding"), 60, "the first of its frames to be under way")
            more.touch()
            wait_until(lambda: queue.call("LLEN", f"{p}in") == 8, 60, "the caller's frames to be there")
        finally:
            caller.kill()
        wait_until(lambda: queue.call("SCARD", f"{p}lanes") == 0, 60, "the killed caller's lane to be closed")
        time.sleep(0.2)  # longer than a lane counts as open without another check; the first frame is still held
        go.touch()
        wait_until(lambda: queue.call("LLEN", f"{p}in") == 0, 60, "its frames to be gone")
    lines = [line.text for line in connect_node(platform.node).logs(deployment)]
    assert lines.count("holding") == 1


def test_a_caller_with_little_to_ask_does_not_wait_behind_all_that_a_greedy_one_sends(platform: Platform) -> None:
    deployment = platform.operator(COUNTS, output={"id": "int64", "frame": "int64"})
    answered: list[int] = []
    mine: list[int] = []
    stop = threading.Event()
    with connect(deployment, node=platform.node, window=64, buffer_events=64) as greedy, connect(deployment, node=platform.node) as small:
        greedy.add_listener(lambda e: answered.append(e["frame"]))
        small.add_listener(lambda e: mine.append(e["frame"]))

        def ask_on() -> None:
            while not stop.is_set():
                greedy.send_batch(pa.record_batch({"id": [1]}))

        asking = threading.Thread(target=ask_on)
        asking.start()
        try:
            wait_until(lambda: len(answered) > 100, 60, "the greedy caller to be served for a while")
            waited = []
            for _ in range(10):
                before = answered[-1]
                small.send({"id": 2})
                small.flush()
                waited.append(mine[-1] - before)
        finally:
            stop.set()
            asking.join()
    assert sorted(waited)[5] <= 12, f"frames that were processed before the small caller's: {waited}"


def test_a_deployment_polls_with_linear_back_off_before_it_sleeps_where_told_to(platform: Platform) -> None:
    def polls(**limits: int) -> int:
        """Return the number of reads of the queue for one event, on both sides."""
        name = polling(**limits)
        with closing(platform.queue()) as queue, connect(name, node=platform.node) as client:
            client.send({"id": 1})
            client.flush()
            sleeps(queue, name)
            before = reads(queue)
            client.send({"id": 2})
            client.flush()
            sleeps(queue, name)
            return reads(queue) - before

    def sleeps(queue: Any, name: str) -> None:
        wait_until(lambda: queue.call("SCARD", f"{SlotKeys(name, 0)}parked") == 1, 20, "the instance to sleep on its queue")

    def polling(**limits: int) -> str:
        name = platform.operator()
        platform.api.undeploy(name, drop_state=True)
        platform.deploy(name, limits=limits)
        return name

    def reads(queue: Any) -> int:
        stats = bytes(queue.call("INFO", "commandstats")).decode()
        return int(next(line for line in stats.splitlines() if line.startswith("cmdstat_lrange:")).partition("calls=")[2].split(",")[0])

    assert polls() < 20
    assert polls(backoff_ceiling_us=2000) > 50


def test_the_collector_of_a_deployment_that_polls_is_told_to_poll_as_well(platform: Platform) -> None:
    name = platform.operator()
    platform.api.undeploy(name, drop_state=True)
    platform.deploy(name, limits={"backoff_ceiling_us": 500})
    assert opened(connect_node(platform.node), name, "polls").backoff_ceiling_us == 500
