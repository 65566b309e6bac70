"""Equality of keys, and the states that can be kept, however an operator runs: by event, by frame, in a process of its own."""

from __future__ import annotations

import datetime as dt
import math
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from udo_runtime import FrameKeys, FrameStates, Operator
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import EXPIRES, TIMERS, pack, pack_each, unpack, unpack_all, unpack_each
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session

from tests.support.selection import long
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header
from udo_protocol.state.pieces import StoredGroup

ANSWERS = pa.schema([("n", pa.int64())])
TIME = pa.timestamp("us")
T0 = dt.datetime(2020, 1, 1)
WAYS = ("events", "dead letters", "frames", "process", "frames in a process")


class Count(Operator):
    """A running count per key, in a state that is assigned anew each time; a timer answers it once more."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        ctx.timer(event["t"] + dt.timedelta(seconds=1))
        ctx.state = {"n": ctx.state.get("n", 0) + 1}
        ctx.state["twice"] = ctx.state["n"] * 2  # changes the assigned dict
        yield {"n": ctx.state["n"]}

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Iterator[dict[str, Any]]:
        ctx.state = {"n": ctx.state["n"] + 100}
        yield {"n": ctx.state["n"]}


class CountFrames(Count):
    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> dict[str, Any]:
        answers = []
        for number, at in zip(keys.index.to_pylist(), events.column("t").to_pylist(), strict=True):
            states[number]["n"] = states[number].get("n", 0) + 1
            keys.timer(number, at + dt.timedelta(seconds=1))
            answers.append(states[number]["n"])
        return {"n": answers}


class Epochs:
    """Epochs of one session; all keys are in group 0."""

    def __init__(self, run: KeyedProcessor) -> None:
        self.run, self.session, self.epoch = run, Session("s"), 0

    def __call__(self, *columns: pa.Array, second: int = 0) -> tuple[list[int], list[int]]:
        """Run an epoch with these keys; return its answers, and those of the timers at its end."""
        rows = len(columns[0])
        times = pa.array([T0 + dt.timedelta(seconds=second)] * rows, TIME)
        batch = pa.RecordBatch.from_arrays([*columns, times], names=[*(f"k{n}" for n in range(len(columns))), "t"])
        header = Header(label=Label(run=1, epoch=self.epoch, attempt=1), groups=[0])
        done = self.run.events(self.session, header, batch, pa.array([0] * rows, pa.int32()))
        ended = self.run.end(self.session, header)
        assert done is not None and ended is not None and not done.bad, done and done.bad
        self.run.complete(self.session, header)
        self.epoch += 1
        return done.answer.column("n").to_pylist(), ended.answer.column("n").to_pylist()

    @property
    def states(self) -> dict[Any, Any]:
        return {key: unpack(value) for key, value in self.session.groups[0].values.items() if key != TIMERS}


Run = Callable[..., Epochs]


@pytest.fixture(params=[*WAYS[:3], *map(long, WAYS[3:])])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(way: str, tmp_path: Path) -> Iterator[Run]:
    """run(key types, operator) -> epochs of an operator that runs in this way."""
    children: list[ChildProcessor] = []

    def begin(*types: pa.DataType, operator: type[Operator] = Count) -> Epochs:
        keyed = KeyedConfig(tuple(f"k{n}" for n in range(len(types))), "t")
        of_way = CountFrames if "frames" in way and operator is Count else operator
        if "process" in way:
            name = of_way.__name__
            program = f"from {__name__} import {name}; from udo_runtime.served.serve import serve; serve({name}())"
            paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
            launch = Launch(
                (sys.executable, "-c", program), str(tmp_path), str(tmp_path), {"PYTHONPATH": paths, "PATH": os.environ["PATH"]}
            )
            events = pa.schema([*zip(keyed.columns, types, strict=True), ("t", TIME)])
            children.append(ChildProcessor(launch, (events, ANSWERS), {"columns": keyed.columns, "time_column": "t"}, Context("t", "1")))
            children[-1].open()
            made = children[-1].keyed(keyed)
        else:
            made = Processor(of_way(), ANSWERS, Context("t", "1")).keyed(keyed)
        made.policy = Policy(dead_letter=True) if way == "dead letters" else Policy()
        return Epochs(made)

    yield begin
    for child in children:
        child.close()


def test_zero_is_one_key_whatever_its_sign(run: Run) -> None:
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        epochs = run(kind)
        assert epochs(pa.array([0.0, -0.0, 1.5], pa.float64()).cast(kind)) == ([1, 2, 1], [])
        assert epochs(pa.array([-0.0], pa.float64()).cast(kind), second=10) == ([3], [])
        assert sorted(epochs(pa.array([7.0], pa.float64()).cast(kind), second=20)[1]) == [101, 103], "one timer for both zeros"
        assert sorted(epochs.states) == [0.0, 1.5, 7.0] and math.copysign(1, min(epochs.states)) == 1


@pytest.mark.parametrize("columns", [1, 2])
def test_nan_is_one_key_also_once_it_is_stored(run: Run, columns: int) -> None:
    """NaN with any bits; with timers, which are stored under packed keys."""
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    more = (pa.array(["a", "a", "a"]),) if columns == 2 else ()
    types = (pa.float64(), pa.string())[:columns]
    epochs = run(*types)
    assert epochs(pa.array([math.nan, other, 1.0]), *more) == ([1, 2, 1], [])
    group = epochs.session.groups[0]
    stored = StoredGroup(group.meta(), pa.py_buffer(group.snapshot()), [], group.place)
    epochs.session.groups[0] = Group.restore(stored, group.versions)
    epochs.session.states.clear()
    assert epochs(pa.array([other, math.nan, 1.0]), *more, second=10) == ([3, 4, 2], [])
    moved = Group.imported(*epochs.session.groups[0].last_ended())
    assert len(moved.values) == 3 and moved.keys == 2 and moved.waiting == 0  # two keys, and the timers
    assert sorted(epochs(pa.array([5.0, 5.0, 5.0]), *more, second=20)[1]) in ([102, 104], [102, 104, 202, 204])


def test_a_time_with_a_zone_is_an_instant_also_in_the_hour_that_comes_twice(run: Run) -> None:
    """At 01:00 UTC the clocks in Berlin go from 03:00 back to 02:00."""
    zone = ZoneInfo("Europe/Berlin")
    before, behind = (dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1))
    assert before.astimezone(zone).replace(tzinfo=None, fold=0) == behind.astimezone(zone).replace(tzinfo=None, fold=0)
    kind = pa.timestamp("us", "Europe/Berlin")
    epochs = run(kind)
    assert epochs(pa.array([before, behind, before], kind)) == ([1, 1, 2], [])
    assert epochs(pa.array([behind], kind)) == ([2], [])
    assert sorted(epochs.states) == [before, behind]


def test_keys_of_several_columns_are_compared_column_by_column(run: Run) -> None:
    epochs = run(pa.float64(), pa.string())
    assert epochs(pa.array([0.0, -0.0, None, 0.0]), pa.array(["a", "a", "a", "b"])) == ([1, 2, 1, 1], [])
    assert set(epochs.states) == {(0.0, "a"), (None, "a"), (0.0, "b")}


def test_a_state_may_be_assigned(run: Run, way: str) -> None:
    epochs = run(pa.string())
    assert epochs(pa.array(["a", "b", "a"])) == ([1, 1, 2], [])
    assert epochs(pa.array(["a"]), second=10) == ([3], [])
    assert sorted(epochs(pa.array(["c"]), second=20)[1]) == [101, 103]
    if "frames" not in way:
        assert epochs.states["c"] == {"n": 1, "twice": 2} and epochs.states["a"] == {"n": 103}


class Expiring(Operator):
    """Assigns its state before or after it sets the expiry, depending on the key; an empty state counts as no state."""

    def process(self, event: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
        key = event["k0"]
        before = len(ctx.state)
        if key == "behind":
            ctx.expire(event["t"] + dt.timedelta(seconds=5))
        ctx.state = {} if key == "empty" and before else {"n": 1}
        if key == "before":
            ctx.expire(event["t"] + dt.timedelta(seconds=5))
        return [{"n": before}]


@pytest.mark.parametrize("way", ["events", "dead letters", long("process")])
def test_a_state_that_was_assigned_expires_as_was_said(run: Run) -> None:
    epochs = run(pa.string(), operator=Expiring)
    epochs(pa.array(["before", "behind", "empty", "stays"]))
    assert all(EXPIRES in epochs.states[key] for key in ("before", "behind"))
    epochs(pa.array(["empty"]), second=10)
    assert "empty" not in epochs.states
    epochs(pa.array(["stays"]), second=10)
    assert set(epochs.states) == {"stays"}


class AssignsWrongly(Operator):
    def process(self, event: dict[str, Any], ctx: Any) -> None:
        ctx.state = [1]


class AssignsInFrames(Operator):
    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Any) -> None:
        ctx.state = {"n": 1}


@pytest.mark.parametrize("way", ["events", long("process")])
@pytest.mark.parametrize(
    ("operator", "says"),
    [(AssignsWrongly, r"ctx\.state expects a dict, got list: \[1\]"), (AssignsInFrames, r"process_keys has no ctx\.state.*is states\[n\]")],
)
def test_what_cannot_be_assigned_is_said(run: Run, operator: type[Operator], says: str) -> None:
    with pytest.raises(ProcessingError, match=says):
        run(pa.string(), operator=operator)(pa.array(["a"]))


class Keeps(Operator):
    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        pairs = ctx.state.setdefault("pairs", {})
        pairs[event["k0"], ("x", 1)] = pairs.get((event["k0"], ("x", 1)), 0) + 1
        if event["k0"] == "bad":
            ctx.state["text"] = "\ud800"
        yield {"n": pairs[event["k0"], ("x", 1)]}


@pytest.mark.parametrize("way", ["events", "process"])
def test_a_dict_with_tuples_as_keys_is_kept_and_what_cannot_be_names_its_key(run: Run) -> None:
    epochs = run(pa.string(), operator=Keeps)
    assert epochs(pa.array(["a", "b", "a"])) == ([1, 1, 2], [])
    assert epochs(pa.array(["a"])) == ([3], [])
    with pytest.raises(ProcessingError, match="the state of key 'bad' cannot be stored: .*surrogates not allowed"):
        epochs(pa.array(["bad"]))


Scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 66), 1 << 66),
    st.floats(allow_nan=False),
    st.text(st.characters(), max_size=5),  # also surrogates
    st.binary(max_size=5),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-12))])),
    st.dates(),
    st.decimals(allow_nan=False),
    st.sets(st.integers(), max_size=1),
)
Hashable = st.recursive(st.one_of(st.integers(-5, 5), st.text(max_size=3), st.dates(), st.none()), lambda s: st.tuples(s, s), max_leaves=4)
Values = st.recursive(
    Scalars, lambda s: st.one_of(st.lists(s, max_size=3), st.dictionaries(Hashable, s, max_size=3), st.tuples(s)), max_leaves=8
)


def as_read(value: Any) -> Any:
    """The value after storing and reading: tuples are lists, except in keys; times with a zone are in UTC."""
    if isinstance(value, dict):
        return {k: as_read(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_read(v) for v in value]
    return value


@given(st.lists(st.dictionaries(Hashable, Values, max_size=3), min_size=1, max_size=3))
def test_what_can_be_stored_can_be_read_and_what_cannot_is_said_with_its_key(states: list[dict[Any, Any]]) -> None:
    names = [f"key{n}" for n in range(len(states))]
    try:
        packed = pack_each(names, states)
    except TypeError as e:
        assert any(f"the state of key '{name}' cannot be stored: " in str(e) for name in names)
        return
    wanted = list(map(as_read, states))
    assert list(map(unpack, packed)) == unpack_all(packed, len(packed)) == unpack_each(packed, pack(None))[::2] == wanted


@pytest.mark.parametrize("kind", [dict, list])
def test_states_are_stored_just_as_deep_as_they_can_be_read(kind: type) -> None:
    deepest = 0
    for depth in (500, *range(990, 1030)):
        state: Any = {}
        inner = state
        for _ in range(depth):
            inner["a"] = {} if kind is dict else [{}]
            inner = inner["a"] if kind is dict else inner["a"][0]
        try:
            packed = pack_each(["k"], [state])
        except TypeError as e:
            assert "the state of key 'k' cannot be stored: " in str(e) and ("nested" in str(e) or "recursion" in str(e))
        else:
            assert pack(unpack_all(packed, 1)[0]) == pack(unpack_each(packed, pack(None))[0]) == packed[0]
            deepest = depth
    assert deepest >= 500 if kind is list else 990 <= deepest < 1029


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1 << 64, "integers of at most 64 bits"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))), "out of range"),
        ({1, 2}, "a set: expected numbers"),
        (dt.time(1), "a time: expected numbers"),
    ],
)
def test_a_value_that_cannot_be_stored_is_said_with_the_key(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"the state of key 'a' cannot be stored: .*{says}"):
        pack_each(["b", "a"], [{"n": 1}, {"deep": [{"er": value}]}])


def test_another_thread_packs_in_the_middle_of_a_state() -> None:
    """Packing a time calls its zone, which is Python code: other threads run meanwhile, such as the one that reads ahead of a move."""
    other: list[bytes] = []

    class Slow(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            beside = threading.Thread(target=lambda: other.append(pack({"other": 1})))
            beside.start()
            beside.join()
            return dt.timedelta(0)

    state = {"a": 1, "t": T0.replace(tzinfo=Slow()), "b": 2}
    assert unpack(pack(state)) == {**state, "t": T0.replace(tzinfo=dt.UTC)}
    assert other and all(unpack(packed) == {"other": 1} for packed in other)
