"""The memory that an engine shares with its operator's process: neither can truncate it, and data taken out of it do not change."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from udo_runtime.child import shared
from udo_runtime.child.shared import HALF_BYTES, LEAST_BYTES, SharedMemory

from udo_protocol.errors import ProtocolError


@pytest.fixture
def fd() -> Iterator[int]:
    """The descriptor of a new memory file."""
    found = shared.make()
    assert found is not None
    yield found
    os.close(found)


def of(size: int, value: int) -> pa.Buffer:
    return pa.py_buffer(bytes([value]) * size)


def test_the_file_cannot_be_cut_or_grown(fd: int) -> None:
    for size in (0, 1, 4 * HALF_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 2 * HALF_BYTES)


def test_what_one_end_puts_there_the_other_takes_and_it_stays_as_it_was(fd: int) -> None:
    engine, operator = SharedMemory(fd, engine=True), SharedMemory(fd, engine=False)
    for writer, reader in ((engine, operator), (operator, engine)):
        places = [writer.out.put(of(LEAST_BYTES + n, n)) for n in (1, 2)]
        assert None not in places
        taken = [reader.take(at or 0, LEAST_BYTES + n) for n, at in zip((1, 2), places, strict=True)]
        writer.out.begin()
        writer.out.put(of(2 * LEAST_BYTES + 100, 9))
        assert taken == [of(LEAST_BYTES + n, n) for n in (1, 2)]


def test_small_tables_and_those_for_which_there_is_no_room_are_sent(fd: int) -> None:
    out = SharedMemory(fd, engine=True).out
    assert out.put(of(LEAST_BYTES - 1, 1)) is None
    assert out.put(of(HALF_BYTES + 1, 1)) is None
    assert out.put(of(HALF_BYTES - LEAST_BYTES, 1)) == 0
    assert out.put(of(LEAST_BYTES + 1, 1)) is None
    out.begin()
    assert out.put(of(HALF_BYTES, 1)) == 0
    assert out.put(of(LEAST_BYTES, 1)) is None


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 64), (HALF_BYTES - 8, 64), (2 * HALF_BYTES, 1), (2 * HALF_BYTES - 8, 9), (HALF_BYTES + 4, 8)]
    + [(2**64 - 8, 16), (HALF_BYTES, 2**64 - 8), (HALF_BYTES, HALF_BYTES + 1)],
)
def test_a_table_that_does_not_lie_in_the_other_ends_half_is_refused(fd: int, offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="in shared memory"):
        SharedMemory(fd, engine=True).take(offset, size)


def test_an_operator_without_the_file_has_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "/proc/self/fd/9999", "/", os.devnull):
        monkeypatch.setenv(shared.SHARED, path)
        assert shared.given() is None
