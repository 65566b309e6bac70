"""Held answers: none leaves before all have come; they stay in order, and wait in a file above the bound."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from udo_interface.spark.held import held


def batches(count: int, came: list[int]) -> Iterator[pa.RecordBatch]:
    for i in range(count):
        came.append(i)
        yield pa.record_batch({"id": [i] * 10, "text": ["x" * i] * 10})


@pytest.mark.parametrize("bound", [0, 500, 1 << 20])
def test_all_has_come_before_the_first_leaves_and_the_order_is_kept(bound: int) -> None:
    came: list[int] = []
    answers = held(batches(20, came), bound)
    assert next(answers).column("id").to_pylist() == [0] * 10
    assert came == list(range(20))
    assert list(answers) == list(batches(20, []))[1:]
