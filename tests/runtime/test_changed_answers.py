"""Answers are what they were when user code gave them, whatever it does with its objects afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.state.session import Session

from udo_protocol.formats.state_types import StateTypes
from udo_protocol.queue.frame import Header

EVENTS = pa.schema([("text", pa.string())])
WORDS = pa.schema([("text", pa.string()), ("seen", pa.list_(pa.struct([("word", pa.string())]))), ("raw", pa.binary())])
TALLIES = pa.schema([("n", pa.int64()), ("words", pa.list_(pa.string()))])


class Words(Operator):
    """One answer per word: always the same dict, with a list and bytes that grow."""

    def process(self, event: dict[str, Any], ctx: Context) -> Any:
        event.update(seen=[], raw=bytearray())
        for word in event["text"].split():
            event["text"] = word
            event["seen"].append({"word": word})
            event["raw"] += word.encode()
            yield event


class Tallies(Operator):
    """Answers with the state itself."""

    def process(self, event: dict[str, Any], ctx: Any) -> Any:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state.setdefault("words", []).append(event["text"])
        yield ctx.state


class OneBuffer(Operator):
    """Answers each batch in the same memory; fails on a negative number."""

    def __init__(self) -> None:
        self._out = np.zeros(8, np.int64)

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> Any:
        given = batch.column("a").to_numpy()
        if (given < 0).any():
            raise ValueError("negative")
        out = self._out[: len(given)]
        out[:] = given + 1
        return {"n": out}


def in_a_process(operator: type[Operator], directory: Path, output: pa.Schema, keyed: dict[str, Any] | None) -> ChildProcessor:
    name = operator.__name__
    program = f"from {__name__} import {name}; from udo_runtime.served.serve import serve; serve({name}())"
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    launch = Launch((sys.executable, "-c", program), str(directory), str(directory), {"PYTHONPATH": paths, "PATH": os.environ["PATH"]})
    made = ChildProcessor(launch, (EVENTS, output), keyed, Context("t", "1"))
    made.open()
    return made


def texts(*given: str) -> pa.RecordBatch:
    return pa.record_batch({"text": list(given)}, schema=EVENTS)


GROWN = [
    {"text": "a", "seen": [{"word": "a"}], "raw": b"a"},
    {"text": "bc", "seen": [{"word": "a"}, {"word": "bc"}], "raw": b"abc"},
    {"text": "d", "seen": [{"word": "d"}], "raw": b"d"},
]


def test_an_operator_may_yield_one_dict_again_and_again() -> None:
    processor = Processor(Words(), WORDS, Context("t", "1"))
    assert processor.once(texts("a bc", "d")).to_pylist() == GROWN
    answer, bad = processor.without_bad(texts("a bc", "d"), ProcessingError("failed before"), 1)
    assert answer.to_pylist() == GROWN and not bad


def test_an_operator_in_a_process_of_its_own_may_do_so_too(tmp_path: Path) -> None:
    processor = in_a_process(Words, tmp_path, WORDS, None)
    try:
        assert processor.once(texts("a bc", "d")).to_pylist() == GROWN
    finally:
        processor.close()


@pytest.fixture(params=["engine", "typed", "dead letters", "process"])
def tallies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The keyed processor of Tallies, run in each way."""
    keyed = KeyedConfig(("text",))
    child = None
    if request.param == "process":
        child = in_a_process(Tallies, tmp_path, TALLIES, {"columns": keyed.columns})
        made = child.keyed(keyed)
    else:
        types = StateTypes.of({"n": "int64", "words": "list<string>"}) if request.param == "typed" else None
        made = Processor(Tallies(), TALLIES, Context("t", "1"), types).keyed(keyed)
    made.policy = Policy(dead_letter=request.param == "dead letters")
    yield made
    if child is not None:
        child.close()


def test_an_operator_may_answer_with_its_state(tallies: Any) -> None:
    done = tallies.events(Session("s"), Header(session="s"), texts("x", "x", "y", "x"), pa.array([0, 0, 0, 0], pa.int32()))
    assert [row["n"] for row in done.answer.to_pylist()] == [1, 2, 1, 3]
    assert [row["words"] for row in done.answer.to_pylist()] == [["x"], ["x", "x"], ["y"], ["x", "x", "x"]]


def test_answers_in_memory_that_is_used_again_are_kept_while_bad_events_are_looked_for() -> None:
    processor = Processor(OneBuffer(), pa.schema([("n", pa.int64())]), Context("t", "1"))
    events = pa.record_batch({"a": [1, 2, -1, 3, 4, 5]})
    with pytest.raises(ProcessingError) as failed:
        processor.once(events)
    answer, bad = processor.without_bad(events, failed.value, 6)
    assert answer.column("n").to_pylist() == [2, 3, 4, 5, 6] and [b.row for b in bad] == [2]
