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
from udo_runtime.execution.failure import ProcessingError
from udo_runtime.execution.keyed import KeyedConfig, KeyedProcessor, Processed
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import TIMERS, unpack
from udo_runtime.state.session import Session

from udo_cli.conformance.schemas import KEYED_BOTH, answers, keyed
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

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
        """As they are stored."""
        return {key: unpack(value) for key, value in self.session.groups[0].values.items() if key != TIMERS}

    def _header(self) -> Header:
        return Header(label=Label(run=1, epoch=self._epoch, attempt=1), groups=[0])


@pytest.fixture
def frames(tmp_path: Path) -> Iterator[Callable[[Policy], Frames]]:
    """frames(policy) -> epochs of the conformance operator in Python, in the role `keyed`."""
    there: list[ChildProcessor] = []

    def make(policy: Policy) -> Frames:
        env = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ["PATH"], "UDO_CONFORMANCE": "keyed"}
        launch = Launch((sys.executable, str(PYTHON)), str(tmp_path), str(tmp_path), env)
        there.append(ChildProcessor(launch, KEYED_BOTH, MANIFEST, Context("t", "1")))
        there[-1].open()
        run = there[-1].keyed(KeyedConfig(("k",), "at"))
        run.policy = policy
        return Frames(run)

    yield make
    for processor in there:
        processor.close()


def test_a_bad_event_becomes_a_dead_letter_and_leaves_no_state_and_no_timer(frames: Callable[[Policy], Frames]) -> None:
    epochs = frames(Policy(dead_letter=True))
    done = epochs.events(("a", "count", 1, S), ("a", "raise", 7, S), ("b", "count", 2, None), ("a", "count", 3, None))
    assert answers(done.answer) == [("a", 1, None), ("b", 2, None), ("a", 4, None)]
    assert [(b.row, "raise 7" in str(b.error)) for b in done.bad] == [(1, True)]
    assert answers(epochs.end().answer) == []
    assert epochs.states == {"a": {"n": 4}, "b": {"n": 2}}
    epochs.events(("c", "count", 1, 9 * S))
    epochs.end()
    assert answers(epochs.end().answer) == []  # the watermark has passed what the bad event set


def test_a_frame_that_fails_is_tried_again_and_fails_with_its_event(frames: Callable[[Policy], Frames]) -> None:
    tries: list[int] = []
    epochs = frames(Policy(retries=2, note=lambda: tries.append(1)))
    with pytest.raises(ProcessingError, match="raise 7") as e:
        epochs.events(("a", "count", 1, None), ("b", "raise", 7, S))
    assert (len(tries), '"k": "b"' in e.value.event) == (2, True)
    assert epochs.states == {}


@pytest.mark.parametrize("policy", [Policy(), Policy(dead_letter=True)], ids=["fail", "dead_letter"])
def test_timers_and_expirations_of_a_key_take_effect_in_their_order(frames: Callable[[Policy], Frames], policy: Policy) -> None:
    epochs = frames(policy)
    set_ = [("a", "timer", 0, 10 * S), ("a", "expire", 0, 10 * S), ("a", "timer", 0, 20 * S), ("b", "timer", 0, 5 * S)]
    epochs.events(("a", "count", 5, None), *set_, ("b", "count", 1, None), ("d", "count", 7, None), ("d", "expire", 0, 99 * S))
    assert answers(epochs.end().answer) == []  # the watermark comes with the next epoch
    assert answers(epochs.end().answer) == [("b", 2, 5 * S), ("a", 6, 10 * S), ("a", 1, 20 * S)]  # a expired between its timers
    assert epochs.states == {"a": {"n": 1}, "b": {"n": 2}}
