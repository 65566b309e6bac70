"""The batches in which a lane brings restored state to an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from udo_interface.store.store_lane import parts
from udo_protocol.state.stored import ROWS, bytes_of

BOUND = 200
VALUES = st.dictionaries(st.binary(max_size=8), st.binary(max_size=150), max_size=12)


@given(st.dictionaries(st.integers(0, 20), VALUES, max_size=6))
def test_all_rows_come_in_batches_of_bounded_size_and_a_group_is_complete_with_its_last_row(values: dict[int, dict[bytes, bytes]]) -> None:
    found: dict[int, dict[bytes, bytes]] = {}
    complete: list[int] = []
    for of_batch, batch in parts(values, BOUND):
        assert batch.schema == ROWS
        rows = [(r["group"], r["key"], r["value"]) for r in batch.to_pylist()]
        assert len(rows) == 1 or sum(bytes_of({key: value}) for _, key, value in rows) <= BOUND
        assert not {n for n, _, _ in rows} & set(complete)
        for n, key, value in rows:
            assert key not in found.setdefault(n, {})
            found[n][key] = value
        complete += of_batch
        assert all(found.get(n, {}) == values[n] for n in of_batch)
    assert complete == list(values)
