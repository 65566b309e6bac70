"""Comparing two answers: null equals null and NaN equals NaN, for any type."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from udo_runtime.engine.differences import row, unequal, unequal_columns

NAN = math.nan


@pytest.mark.parametrize(
    ("served", "new", "kind", "rows"),
    [
        ([1, 2, 3], [1, 2, 3], pa.int64(), []),
        ([1, 2, 3], [1, 5, None], pa.int64(), [1, 2]),
        ([None, None], [None, 1], pa.int64(), [1]),
        ([NAN, NAN, 1.0, None], [NAN, 1.0, NAN, NAN], pa.float64(), [1, 2, 3]),
        ([NAN], [NAN], pa.float32(), []),
        (["a", None, ""], ["a", None, None], pa.string(), [2]),
        ([[1.0, NAN], None, []], [[1.0, NAN], None, None], pa.list_(pa.float64()), [2]),
        ([{"x": NAN, "y": [1]}], [{"x": NAN, "y": [2]}], pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int8()))]), [0]),
        ([1_000_000_001], [1_000_000_002], pa.timestamp("ns"), [0]),
    ],
)
def test_rows_that_differ_are_named(served: list[Any], new: list[Any], kind: pa.DataType, rows: list[int]) -> None:
    assert unequal(pa.array(served, kind), pa.array(new, kind)) == rows


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats() | st.none(), st.floats() | st.none())))
def test_floats_are_judged_as_one_by_one(pairs: list[tuple[float | None, float | None]]) -> None:
    served, new = (pa.array([p[i] for p in pairs], pa.float64()) for i in (0, 1))
    expected = [i for i, (a, b) in enumerate(pairs) if not (a == b or (a is not None and b is not None and a != a and b != b))]
    assert unequal(served, new) == expected


def test_columns_are_compared_over_the_rows_both_have_and_rows_are_told_for_people() -> None:
    served = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y" * 600]})
    new = pa.RecordBatch.from_pydict({"a": [1], "b": ["z"]})

    assert unequal_columns(served, new) == {"b": [0]}
    assert row(served, 0) == {"a": 1, "b": "x"}
    assert row(served, 2) is None
    assert len((row(served, 1) or {})["b"]) < 600
    assert row(pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], ["t"]), 0) == {"t": "1970-01-01 00:00:00.000000001"}
