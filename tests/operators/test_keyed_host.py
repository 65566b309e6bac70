"""Keyed frames of an operator's process: bad events, timers and expirations, as with any keyed operator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor, Processed
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import EXPIRES, TIMERS, columns, pack, pack_large, unpack
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions

from tests.support.counting_slot import COUNTS, EVENTS
from udo_cli.conformance.schemas import KEYED_BOTH, answers, keyed
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header
from udo_protocol.state.pieces import StoredGroup

PYTHON = Path(__file__).parents[2] / "runtimes" / "conformance" / "python_operator.py"
MANIFEST = {"columns": ["k"], "time_column": "at"}
S = 1_000_000  # µs
Row = tuple[str, str, int, int | None]


class Frames:
    """Epochs of one session, all of its keys in group 0."""

    def __init__(self, run: KeyedProcessor) -> None:
        self.run, self.session, self._epoch = run, Session("s"), 0

    def events(self, *rows: Row) -> Processed:
        done = self.run.events(self.session, self._header(), keyed(*rows), pa.array([0] * len(rows), pa.int32()))
        assert done is not None
        return done

    def end(self) -> Processed:
        done = self.run.end(self.session, self._header())
        assert done is not None
        self.run.complete(self.session, self._header())
        self._epoch += 1
        return done

    @property
    def states(self) -> dict[str, object]:
        """The states in their stored form."""
        return {key: unpack(value) for key, value in self.session.groups[0].values.items() if key != TIMERS}

    def _header(self) -> Header:
        return Header(label=Label(run=1, epoch=self._epoch, attempt=1), groups=[0])


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[ChildProcessor]:
    """The conformance operator in Python, as its role `keyed`."""
    env = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ["PATH"], "UDO_CONFORMANCE": "keyed"}
    launch = Launch((sys.executable, str(PYTHON)), str(tmp_path), str(tmp_path), env)
    made = ChildProcessor(launch, KEYED_BOTH, MANIFEST, Context("t", "1"))
    made.open()
    yield made
    made.close()


@pytest.fixture
def frames(processor: ChildProcessor) -> Callable[[Policy], Frames]:
    """frames(policy) -> epochs of that operator."""

    def make(policy: Policy) -> Frames:
        run = processor.keyed(KeyedConfig(("k",), "at"))
        run.policy = policy
        return Frames(run)

    return make


def test_a_bad_event_becomes_a_dead_letter_and_leaves_no_state_and_no_timer(frames: Callable[[Policy], Frames]) -> None:
    epochs = frames(Policy(dead_letter=True))
    done = epochs.events(("a", "count", 1, S), ("a", "raise", 7, S), ("b", "count", 2, None), ("a", "count", 3, None))
    assert answers(done.answer) == [("a", 1, None), ("b", 2, None), ("a", 4, None)]
    assert [(b.row, "raise 7" in str(b.error)) for b in done.bad] == [(1, True)]
    assert answers(epochs.end().answer) == []
    assert epochs.states == {"a": {"n": 4}, "b": {"n": 2}}
    epochs.events(("c", "count", 1, 9 * S))
    epochs.end()
    assert answers(epochs.end().answer) == []  # the watermark has passed the timer of the bad event


def test_a_frame_that_fails_is_tried_again_and_fails_with_its_event(frames: Callable[[Policy], Frames]) -> None:
    tries: list[int] = []
    epochs = frames(Policy(retries=2, note=lambda: tries.append(1)))
    with pytest.raises(ProcessingError, match="raise 7") as e:
        epochs.events(("a", "count", 1, None), ("b", "raise", 7, S))
    assert (len(tries), '"k": "b"' in e.value.event) == (2, True)
    assert epochs.states == {}


def test_the_states_of_a_group_are_migrated_in_one_request_and_keep_their_expirations(processor: ChildProcessor) -> None:
    values = {f"k{n}": pack({"n": n, "note": "ü", **({EXPIRES: 5} if n == 7 else {})}) for n in range(5_000)}
    versions = Versions(2, [1], processor.per_event.migrate, processor.migrate_all)
    before = processor._child._id
    group = Group.restore(StoredGroup(base=pack_large(columns(1, {**values, TIMERS: pack({"t": {}})}))), versions)
    assert unpack(group.values["k7"]) == {"n": 70, "note": "ü", "from": 1, EXPIRES: 5}
    assert all(unpack(group.values[f"k{n}"])["n"] == 10 * n for n in range(5_000)) and unpack(group.values[TIMERS]) == {"t": {}}
    assert processor._child._id == before + 1


def test_a_state_that_cannot_be_migrated_is_named(processor: ChildProcessor) -> None:
    versions = Versions(2, [1], processor.per_event.migrate, processor.migrate_all)
    group = Group.restore(StoredGroup(base=pack_large(columns(1, {"a": pack({"n": 1}), "b": pack({"n": None})}))), versions)
    with pytest.raises(ProcessingError, match=r"migrate\(\) from state version 1: TypeError") as e:
        _ = group.values
    assert e.value.event == '{"key": "b", "state": {"n": null}}'


def test_a_vectorised_operator_answers_frames_and_its_bad_events_are_left_out(tmp_path: Path) -> None:
    program = "from tests.support.counting_slot import CountFrames; from udo_runtime.served.serve import serve; serve(CountFrames())"
    env = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]), "PATH": os.environ["PATH"]}
    launch = Launch((sys.executable, "-c", program), str(tmp_path), str(tmp_path), env)
    made = ChildProcessor(launch, (EVENTS, COUNTS), {"columns": ["k"], "time_column": "t"}, Context("t", "1"))
    made.open()
    try:
        run, session = made.keyed(KeyedConfig(("k",), "t")), Session("s")
        run.policy = Policy(dead_letter=True)
        for epoch, keys, want, bad, fired in (
            (0, [1, 2, 1], [1, 1, 2], [], []),
            (1, [1, 13, 2, 13], [3, 2], [1, 3], []),
            (2, [], [], [], [1003, 1002]),
        ):
            header = Header(label=Label(run=1, epoch=epoch, attempt=1), groups=[0])
            rows = pa.record_batch([pa.array(keys, pa.int64()), pa.array([epoch * 10 * S] * len(keys), pa.timestamp("us"))], schema=EVENTS)
            done = run.events(session, header, rows, pa.array([0] * len(keys), pa.int32()))
            assert done is not None and done.answer.column("n").to_pylist() == want and [b.row for b in done.bad] == bad
            ended = run.end(session, header)
            run.complete(session, header)
            assert ended is not None and ended.answer.column("n").to_pylist() == fired
    finally:
        made.close()


@pytest.mark.parametrize("policy", [Policy(), Policy(dead_letter=True)], ids=["fail", "dead_letter"])
def test_timers_and_expirations_of_a_key_take_effect_in_their_order(frames: Callable[[Policy], Frames], policy: Policy) -> None:
    epochs = frames(policy)
    set_ = [*[("a", "timer", 0, 10 * S)] * 2, ("a", "expire", 0, 10 * S), ("a", "timer", 0, 20 * S), ("b", "timer", 0, 5 * S)]
    epochs.events(("a", "count", 5, None), *set_, ("b", "count", 1, None), ("d", "count", 7, None), ("d", "expire", 0, 99 * S))
    assert answers(epochs.end().answer) == []  # the watermark takes effect in the next epoch
    assert answers(epochs.end().answer) == [("b", 2, 5 * S), ("a", 6, 10 * S), ("a", 1, 20 * S)]  # one per time; a expired in between
    assert epochs.states == {"a": {"n": 1}, "b": {"n": 2}}
