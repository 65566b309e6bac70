"""A vectorised keyed operator under the keyed engine: answers, state, timers and dead letters equal those of one that works by event."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime import FrameKeys, FrameStates, Operator
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import TIMERS, unpack
from udo_runtime.state.session import Session

from tests.support.counted import SCRIPT, Epochs, Plans, oracle, play
from tests.support.counting_slot import CountFrames, slot
from tests.support.seeds import examples
from tests.support.selection import long
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import DATA, END, Header
from udo_protocol.state.dead_letters import DEAD, PENDING, Letter

T0 = dt.datetime(2020, 1, 1)
EVENTS = pa.schema([("k", pa.string()), ("j", pa.int64()), ("n", pa.int64()), ("t", pa.timestamp("us"))])
ANSWERS = pa.schema([("k", pa.string()), ("n", pa.int64())])
Row = tuple[str | None, int, int]


@pytest.mark.long
@pytest.mark.parametrize("commit", ["epoch", long("frame")])
def test_whatever_effect_a_process_dies_at_the_next_goes_on_as_if_nothing_had_happened(commit: str) -> None:
    undisturbed = slot(commit=commit, counting=CountFrames)
    assert [a.answers() for a in play(undisturbed, SCRIPT, broken_off=[1])] == oracle(SCRIPT)
    for moment in range(undisturbed.moments):
        s = slot(commit=commit, counting=CountFrames, dies=frozenset({moment}))
        assert [a.answers() for a in play(s, SCRIPT, broken_off=[1])] == oracle(SCRIPT), f"dies at moment {moment}"


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(Plans, st.lists(st.integers(0, 4), max_size=2), st.frozensets(st.integers(0, 150), max_size=3), st.booleans())
def test_any_epochs_attempts_and_deaths_count_like_one_process(
    epochs: Epochs, broken_off: list[int], dies: frozenset[int], by_frame: bool
) -> None:
    s = slot(commit="frame" if by_frame else "epoch", counting=CountFrames, dies=dies)
    assert [a.answers() for a in play(s, epochs, broken_off)] == oracle(epochs)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(st.frozensets(st.integers(0, 120), max_size=3), st.integers(1, 16))
def test_bad_events_are_found_and_are_dead_letters_once_whatever_dies(dies: frozenset[int], read: int) -> None:
    epochs = [[[0, 2], [1, 13, 3]], [[0], [13, 1, 13]], [[0], [1]]]
    s = slot(policy=Policy(dead_letter=True), counting=CountFrames, dies=dies)
    assert [a.answers() for a in play(s, epochs, [2], read)] == oracle(epochs, bad=(13,))
    letters = [Letter.decode(body) for body in s.durable.letters[DEAD].values()]
    assert sorted((x.epoch, x.attempt, x.row) for x in letters) == [(0, 100, 0), (1, 100, 0), (1, 100, 1)]
    assert not s.durable.letters[PENDING]


class Sums(Operator):
    """Answers each event with its key's sum. Negative events fail after all other work; 99 leaves state that cannot be stored."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.answer: Any = None

    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> Any:
        self.frames.append(events.num_rows)
        assert (ctx.key, ctx.state, len(keys)) == (None, {}, len(states))
        out = []
        for row, number in enumerate(keys.index.to_pylist()):
            n, t = events.column("n")[row].as_py(), events.column("t")[row].as_py()
            state = states[number]
            state["sum"] = state.get("sum", 0) + n
            out.append(state["sum"])
            keys.timer(number, t + dt.timedelta(seconds=5))
            keys.expire(number, t + dt.timedelta(seconds=60))
            if n == 99:
                state["bad"] = object()
        if any(n < 0 for n in events.column("n").to_pylist()):
            raise ValueError("negative")
        return self.answer or {"k": events.column("k"), "n": out}

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"k": "timer", "n": ctx.state["sum"]}


class Frames:
    """Epochs of one session under one operator; all keys are in group 0."""

    def __init__(self, policy: Policy | None = None, columns: tuple[str, ...] = ("k",), operator: Operator | None = None) -> None:
        self.operator, self.session, self.epoch = operator or Sums(), Session("s"), 0
        self.run = Processor(self.operator, ANSWERS, Context("t", "1")).keyed(KeyedConfig(columns, "t"))
        self.run.policy = policy or Policy()

    def events(self, *rows: Row, second: int = 0) -> Any:
        at = T0 + dt.timedelta(seconds=second)
        columns = [[k for k, *_ in rows], [j for _, j, _ in rows], [n for *_, n in rows], [at] * len(rows)]
        batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, EVENTS, strict=True)], schema=EVENTS)
        self.done = self.run.events(self.session, self.header(DATA), batch, pa.array([0] * len(rows), pa.int32()))
        assert self.done is not None
        return self.done.answer.column("n").to_pylist()

    def end(self) -> Any:
        done = self.run.end(self.session, self.header(END))
        self.run.complete(self.session, self.header(END))
        self.epoch += 1
        assert done is not None
        return done.answer.column("n").to_pylist()

    def header(self, kind: Any) -> Header:
        return Header(session="s", kind=kind, label=Label(run=1, epoch=self.epoch, attempt=1), groups=[0])

    @property
    def states(self) -> dict[Any, Any]:
        return {key: unpack(value)["sum"] for key, value in self.session.groups[0].values.items() if key != TIMERS}


def test_a_frame_is_one_call_and_each_key_has_its_state() -> None:
    frames = Frames()
    assert frames.events(("a", 0, 1), (None, 0, 5), ("a", 0, 2), ("ü", 0, 7)) == [1, 5, 3, 7]
    assert frames.operator.frames == [4]  # type: ignore[attr-defined]
    frames.end()
    assert frames.states == {"a": 3, None: 5, "ü": 7}
    assert frames.events(("ü", 0, 1), ("a", 0, 1)) == [8, 4]


def test_a_key_of_several_columns_is_a_tuple() -> None:
    frames = Frames(columns=("k", "j"))
    assert frames.events(("a", 1, 1), ("a", 2, 5), ("a", 1, 2)) == [1, 5, 3]
    frames.end()
    assert frames.states == {("a", 1): 3, ("a", 2): 5}


def test_timers_fire_and_states_expire_as_those_of_single_events() -> None:
    frames = Frames()
    frames.events(("a", 0, 1), ("b", 0, 2))
    assert frames.end() == []
    frames.events(("c", 0, 4), second=30)
    assert frames.end() == []
    assert frames.end() == [1, 2]  # due at second 5
    frames.events(("d", 0, 8), second=100)
    frames.end()
    assert frames.end() == [4]  # c's timer; c expires at second 90, a and b at second 60
    assert frames.states == {"d": 8}


def test_a_frame_that_fails_is_halved_until_its_bad_events_are_alone_and_nothing_of_these_stays() -> None:
    frames = Frames(Policy(dead_letter=True))
    assert frames.events(("a", 0, 1), ("a", 0, -5), ("b", 0, 2), ("c", 0, 99), ("a", 0, 3)) == [1, 2, 4]
    assert [(b.row, b.group) for b in frames.done.bad] == [(1, 0), (3, 0)]
    assert [why in str(b.error) for why, b in zip(("negative", "object"), frames.done.bad, strict=True)] == [True, True]
    frames.end()
    assert frames.states == {"a": 4, "b": 2}


def test_under_the_policy_fail_a_frame_that_fails_is_asked_for_once() -> None:
    frames = Frames()
    with pytest.raises(ProcessingError, match="ValueError: negative") as e:
        frames.events(("a", 0, 1), ("a", 0, -5))
    assert frames.operator.frames == [2] and "in process_keys" in e.value.traceback  # type: ignore[attr-defined]


def test_retries_begin_from_the_state_before_the_frame() -> None:
    class Flaky(Sums):
        def process_keys(self, *args: Any, **more: Any) -> Any:
            answer = super().process_keys(*args, **more)
            if len(self.frames) < 3:
                raise OSError("away")
            return answer

    frames = Frames(Policy(retries=2), operator=Flaky())
    assert frames.events(("a", 0, 1), ("a", 0, 2)) == [1, 3]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"k": ["a"], "n": ["text"]}, r"column 'n': expected int64, the operator answered 'text' \(str\) in row 0"),
        ({"k": ["a"]}, "does not fit its output schema"),
        ([{"k": "a", "n": 1}], "expected a RecordBatch, Table or dict of columns, the operator answered list"),
    ],
)
def test_an_answer_of_another_schema_is_refused(answer: Any, says: str) -> None:
    frames = Frames()
    frames.operator.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(ProcessingError, match=says) as e:
        frames.events(("a", 0, 1))
    assert e.value.wire_code == "schema"


def test_states_are_read_and_written_as_columns() -> None:
    given: list[dict[str, Any]] = [{"n": 1, "x": "a"}, {}, {"n": None}]
    states = FrameStates(given)
    assert states.column("n", pa.int64(), 7).to_pylist() == [1, 7, None]
    states.put("n", pa.array([None, 2, 3]))
    states.put("y", [1.5, None, 2.5])
    assert given == [{"x": "a", "y": 1.5}, {"n": 2}, {"n": 3, "y": 2.5}] and states[1:] == given[1:]
    with pytest.raises(ValueError, match="expected 3 values, one for each key, got 2"):
        states.put("n", [1, 2])
