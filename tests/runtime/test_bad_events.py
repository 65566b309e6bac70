"""Finding bad events and leaving them out: halving, retries, savepoints of state and timers."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime import Operator
from udo_runtime.execution.bad_events import BadEvent, again, bisect
from udo_runtime.execution.gathered import joined
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.session import Session

from udo_protocol.proto.frame_pb2 import Label as WireLabel
from udo_protocol.queue.frame import DATA, END, Header

IN = pa.schema([("a", pa.int64())])
OUT = pa.schema([("b", pa.int64())])


def batch(values: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=IN)


class Double:
    """A vectorised operator that fails on some values, and counts its calls."""

    def __init__(self, bad: Iterable[int]) -> None:
        self.bad, self.calls = set(bad), 0

    def __call__(self, asked: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        values = asked.column(0).to_pylist()
        if hit := self.bad.intersection(values):
            raise ProcessingError(f"cannot bear {sorted(hit)}")
        return pa.record_batch([pa.array([2 * v for v in values], pa.int64())], schema=OUT)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 300), st.data())
def test_halving_finds_every_bad_event_keeps_the_order_and_calls_user_code_seldom(n: int, data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n))
    operator = Double(wrong)
    good, bad = bisect(operator, batch(range(n)), ProcessingError("first"), room=n)
    assert joined(good, OUT).column(0).to_pylist() == [2 * v for v in range(n) if v not in wrong]
    assert [b.row for b in bad] == sorted(wrong)
    k = len(wrong)
    assert operator.calls <= 2 * k * math.ceil(math.log2(n) if n > 1 else 0) + 2 * k


def test_halving_ends_when_there_are_more_bad_events_than_room() -> None:
    operator = Double(range(10_000))
    _, bad = bisect(operator, batch(range(10_000)), ProcessingError("first"), room=3)
    assert len(bad) == 4
    assert operator.calls < 2 * 4 * math.log2(10_000) + 8


def test_an_operator_that_is_always_wrong_makes_each_event_a_bad_one() -> None:
    good, bad = bisect(Double(range(8)), batch(range(8)), ProcessingError("always"), room=8)
    assert (joined(good, OUT).num_rows, [b.row for b in bad]) == (0, list(range(8)))
    assert pa.ipc.open_stream(bad[5].arrow).read_all().to_pylist() == [{"a": 5}]
    assert bad[5].event == '{"a": 5}'


def test_retries_end_with_the_first_success_or_with_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("udo_runtime.execution.bad_events.time.sleep", pauses.append)
    outcomes = iter([ProcessingError("second"), "answer"])
    tried: list[int] = []

    def work() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, ProcessingError):
            raise outcome
        return outcome

    assert again(work, 3, ProcessingError("first"), lambda: tried.append(1)) == "answer"
    assert (len(tried), pauses) == (2, [0.05, 0.1])
    outcomes = iter([ProcessingError("second"), ProcessingError("third")])
    with pytest.raises(ProcessingError, match="third"):
        again(work, 2, ProcessingError("first"), lambda: None)
    with pytest.raises(ProcessingError, match="first"):
        again(work, 0, ProcessingError("first"), lambda: None)


class Each(Operator):
    def process(self, event: dict[str, Any], ctx: Context) -> Any:
        if event["a"] == 3:
            raise ValueError("three")
        if event["a"] == 4:
            yield {"c": 1}
        yield {"b": "text" if event["a"] == 5 else event["a"]}
        if event["a"] == 6:
            raise ValueError("after its first answer")


def test_a_per_event_operator_goes_on_behind_a_bad_event_whatever_is_bad_about_it() -> None:
    processor = Processor(Each(), OUT, Context("t", "1"))
    asked = batch(range(1, 9))
    with pytest.raises(ProcessingError) as first:
        processor.once(asked)
    answer, bad = processor.without_bad(asked, first.value, room=100)
    assert answer.column(0).to_pylist() == [1, 2, 7, 8]
    assert [(b.row, b.error.wire_code) for b in bad] == [(2, "operator"), (3, "schema"), (4, "schema"), (5, "operator")]
    assert "expected int64" in str(bad[2].error)
    assert "ValueError: three" in bad[0].traceback


# -- keyed ---------------------------------------------------------------------------------------------------------------

EVENTS = pa.schema([("k", pa.float64()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
ANSWERS = pa.schema([("k", pa.float64()), ("seen", pa.int64())])
START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Counts(Operator):
    """An operator that changes all it can, then fails on certain `n`, in one of several ways; timers fire into the same state."""

    def process(self, event: dict[str, Any], ctx: Any) -> Any:
        n, at = event["n"], event["t"]
        ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        ctx.state.setdefault("list", []).append(n)
        ctx.timer(at + dt.timedelta(seconds=n % 7))
        if n % 3 == 0:
            ctx.expire(at + dt.timedelta(seconds=20 + n % 5))
        if n % 11 == 0:
            ctx.state.clear()
            raise ValueError("eleven")
        if n % 13 == 0:
            ctx.state["worse"] = {"a set"}
            return
        yield {"k": ctx.key, "seen": "text" if n % 17 == 0 else ctx.state["seen"]}

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Any:
        ctx.state["fired"] = ctx.state.get("fired", 0) + 1
        ctx.timer(at + dt.timedelta(seconds=30))
        if at.second % 10 == 3:
            raise ValueError("three")
        yield {"k": key, "seen": "text" if at.second % 10 == 4 else -ctx.state["fired"]}


def is_bad(row: tuple[float, int, float]) -> bool:
    return any(row[1] % m == 0 for m in (11, 13, 17))


class Skips(Counts):
    """The same operator without the failures, for events that cause none: timers that would fail change nothing and answer nothing."""

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Any:
        return () if at.second % 10 in (3, 4) else super().on_timer(key, at, ctx)


class Run:
    """A session under a processor, one frame at a time."""

    def __init__(self, target: Operator, policy: Policy) -> None:
        self.session = Session("q")
        self.processor = KeyedProcessor(target, KeyedConfig(("k",), "t", 1_000_000), ANSWERS, Context("t", "1"))
        self.processor.policy = policy
        self.bad: list[BadEvent] = []  # the bad events of the last frame

    def frame(self, rows: Sequence[tuple[float, int, float]], epoch: int) -> list[Any]:
        columns = [[r[0] for r in rows], [r[1] for r in rows], [START + dt.timedelta(seconds=r[2]) for r in rows]]
        asked = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, EVENTS, strict=True)], schema=EVENTS)
        numbers = pa.array([0 if math.isnan(r[0]) else int(r[0]) % 3 for r in rows], pa.int32())
        return self.answer(self.processor.events(self.session, self.header(DATA, epoch), asked, numbers))

    def answer(self, done: Any) -> list[Any]:
        self.bad = done.bad
        return done.answer.to_pylist()  # type: ignore[no-any-return]

    def end(self, epoch: int) -> list[Any]:
        header = self.header(END, epoch, groups=range(3))
        answer = self.answer(self.processor.end(self.session, header))
        self.processor.complete(self.session, header)
        return answer

    def header(self, kind: Any, epoch: int, **more: Any) -> Header:
        return Header(session="q", kind=kind, label=WireLabel(run=1, epoch=epoch, attempt=epoch), **more)

    def state(self) -> dict[int, Any]:
        for group in self.session.groups.values():
            group.pack()
        return {n: (g.values, g.size, g.label) for n, g in self.session.groups.items() if g.values}


Rows = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 4.0, math.nan]), st.integers(1, 60), st.floats(0, 50)), max_size=12)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(Rows, max_size=3), max_size=4))
def test_state_timers_watermark_and_answers_are_those_of_a_run_without_the_bad_events(epochs: list[list[Any]]) -> None:
    tolerant = Run(Counts(), Policy(True))
    oracle = Run(Skips(), Policy())
    for epoch, frames in enumerate(epochs):
        for rows in frames:
            good = [r for r in rows if not is_bad(r)]
            assert repr(tolerant.frame(rows, epoch)) == repr(oracle.frame(good, epoch))  # NaN is not equal to itself
            assert [b.row for b in tolerant.bad] == [i for i, r in enumerate(rows) if is_bad(r)]
        assert repr(tolerant.end(epoch)) == repr(oracle.end(epoch))
        assert all(b.timer and b.arrow == b"" for b in tolerant.bad)
        assert tolerant.state() == oracle.state()


def test_a_frame_that_fails_under_retries_alone_is_taken_back_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("udo_runtime.execution.bad_events.time.sleep", lambda s: None)
    run = Run(Counts(), Policy(retries=2))
    assert run.frame([(1.0, 1, 0)], 0) == [{"k": 1.0, "seen": 1}]
    with pytest.raises(ProcessingError, match="eleven"):
        run.frame([(1.0, 2, 0), (2.0, 1, 0), (1.0, 11, 0)], 0)
    assert run.frame([(1.0, 2, 0)], 0) == [{"k": 1.0, "seen": 2}]


class Flaky(Operator):
    calls = 0

    def process(self, event: dict[str, Any], ctx: Any) -> Any:
        ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        self.calls += 1
        if self.calls == 3:
            raise OSError("away")
        yield {"k": ctx.key, "seen": ctx.state["seen"]}


def test_a_retried_frame_counts_its_events_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("udo_runtime.execution.bad_events.time.sleep", lambda s: None)
    retried: list[int] = []
    run = Run(Flaky(), Policy(retries=1, note=lambda: retried.append(1)))
    assert [a["seen"] for a in run.frame([(1.0, n, 0) for n in range(4)], 0)] == [1, 2, 3, 4]
    assert retried == [1]


def test_an_event_that_python_cannot_hold_is_a_bad_one() -> None:
    run = Run(Counts(), Policy(True))
    times = pa.array([0, 1 << 62], pa.int64()).cast(EVENTS.field("t").type)
    asked = pa.record_batch([pa.array([1.0, 1.0]), pa.array([1, 1]), times], schema=EVENTS)
    done = run.processor.events(run.session, run.header(DATA, 0), asked, pa.array([1, 1], pa.int32()))
    assert run.answer(done) == [{"k": 1.0, "seen": 1}]
    assert [(b.row, b.event) for b in run.bad] == [(1, "")]
    assert pa.ipc.open_stream(run.bad[0].arrow).read_all().num_rows == 1
