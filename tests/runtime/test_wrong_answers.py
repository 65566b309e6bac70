"""The error that an operator's author gets for answers of the wrong form."""

from __future__ import annotations

from collections import Counter, UserDict, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.state.session import Session

from udo_protocol.errors import SchemaError
from udo_protocol.queue.frame import Header


class _Answers(Operator):
    """An operator that answers a given value."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def process(self, event: Any, ctx: Any) -> Any:
        return self._given


NUMBERS = pa.schema([("n", pa.int32())])


def refused(given: Any) -> str:
    """The error message if process() returns that; it is the same stateless and keyed, event by event, and under a tolerant policy."""
    events = pa.record_batch({"a": [1]})
    ctx = Context("t", "1")
    stateless = Processor(_Answers(given), NUMBERS, ctx)
    with pytest.raises(ProcessingError) as one:
        stateless.once(events)
    [bad] = stateless.without_bad(events, one.value, 1)[1]
    keyed = KeyedProcessor(_Answers(given), KeyedConfig(("a",)), NUMBERS, ctx)
    with pytest.raises(ProcessingError) as two:
        keyed.events(Session("s"), Header(session="s"), events, pa.array([0], pa.int32()))
    assert str(one.value) == str(bad.error) == str(two.value)
    assert one.value.wire_code == SchemaError.code and not one.value.traceback
    return str(one.value)


def test_return_in_place_of_yield_is_told_as_that() -> None:
    assert "write `yield {...}` instead of `return {...}`" in refused({"n": 1})


@pytest.mark.parametrize("given", [5, "text", [1], [{"n": 1}, None]])
def test_what_is_no_series_of_events_is_told_by_its_value_and_type(given: Any) -> None:
    message = refused(given)
    assert "expected events with the columns n" in message
    assert any(f"{v!r} ({type(v).__name__})" in message for v in (given, *(given if isinstance(given, list) else ())))


def test_what_is_yielded_and_no_dict_is_told_too() -> None:
    class Yields(Operator):
        def process(self, event: Any, ctx: Any) -> Any:
            yield {"n": 1}
            yield 7

    with pytest.raises(ProcessingError, match=r"returned 7 \(int\) among them: each answer is a dict"):
        Processor(Yields(), NUMBERS, Context("t", "1")).once(pa.record_batch({"a": [1]}))


def test_a_list_takes_the_type_of_its_column() -> None:
    """Python's numbers have no width: `[1, 2]` fits int32 as well as int64."""
    answer = Processor(lambda batch: {"n": [1, 2]}, NUMBERS, Context("t", "1")).once(pa.record_batch({"a": [1]}))
    assert answer.schema == NUMBERS and answer.to_pydict() == {"n": [1, 2]}


@pytest.mark.parametrize(
    ("values", "bad"), [([1, [2]], "[2] (list) in row 1"), ([1, "x"], "'x' (str) in row 1"), ([1 << 40], "1099511627776 (int)")]
)
def test_a_value_that_does_not_fit_its_column_is_told_with_its_row(values: list[Any], bad: str) -> None:
    with pytest.raises(ProcessingError, match="column 'n': expected int32, the operator answered") as e:
        Processor(lambda batch: {"n": values}, NUMBERS, Context("t", "1")).once(pa.record_batch({"a": [1]}))
    assert bad in str(e.value)


@pytest.mark.parametrize("kind", [Counter, lambda given: defaultdict(int, given), UserDict])
def test_a_mapping_with_defaults_needs_all_columns_too(kind: Any) -> None:
    class Yields(Operator):
        def __init__(self, given: dict[str, int]) -> None:
            self._given = kind(given)

        def process(self, event: Any, ctx: Any) -> Any:
            yield self._given

    events, ctx = pa.record_batch({"a": [1]}), Context("t", "1")
    for given in ({"m": 1}, {}, {"n": 1, "m": 1}):
        for made in (Processor(Yields(given), NUMBERS, ctx).once, _keyed(Yields(given))):
            with pytest.raises(ProcessingError, match="expected an event with the columns n; the operator answered"):
                made(events)
    assert Processor(Yields({"n": 1}), NUMBERS, ctx).once(events).to_pylist() == [{"n": 1}]


def _keyed(operator: Operator) -> Callable[[pa.RecordBatch], Any]:
    run = KeyedProcessor(operator, KeyedConfig(("a",)), NUMBERS, Context("t", "1"))
    return lambda events: run.events(Session("s"), Header(session="s"), events, pa.array([0], pa.int32()))
