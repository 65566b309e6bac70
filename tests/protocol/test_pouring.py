"""Pouring a body: both sides get it whole and in order, whatever the sizes of its pieces, even when it breaks off."""

from __future__ import annotations

import hashlib
import io
import os
import random
import time

import pytest

from udo_protocol.pouring import PIECE, pour


@pytest.mark.parametrize("size", [0, 1, PIECE, 7 * PIECE + 5])
def test_all_bytes_are_taken_and_digested_in_order(size: int) -> None:
    data, sizes = os.urandom(size), random.Random(size)
    source, taken, sha = io.BytesIO(data), bytearray(), hashlib.sha256()

    def fill(buffer: memoryview) -> int:
        return source.readinto(buffer[: sizes.randint(1, PIECE)])

    def slowly(piece: memoryview) -> None:
        time.sleep(0.001)  # slower than the source: a buffer must not be filled again before it is digested
        sha.update(piece)

    assert pour(fill, taken.extend, slowly) == size
    assert bytes(taken) == data
    assert sha.digest() == hashlib.sha256(data).digest()


def test_what_came_before_the_connection_broke_is_taken_and_digested() -> None:
    pieces, taken, sha = [b"one", b"two"], bytearray(), hashlib.sha256()

    def fill(buffer: memoryview) -> int:
        if not pieces:
            raise OSError("broken")
        piece = pieces.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    with pytest.raises(OSError, match="broken"):
        pour(fill, taken.extend, sha.update)
    assert bytes(taken) == b"onetwo" and sha.digest() == hashlib.sha256(b"onetwo").digest()


def test_an_error_of_either_side_ends_it() -> None:
    def full(piece: memoryview) -> None:
        raise OSError("disk full")

    for take, digest in ((full, hashlib.sha256().update), (bytearray().extend, full)):
        with pytest.raises(OSError, match="disk full"):
            pour(io.BytesIO(bytes(9 * PIECE)).readinto, take, digest)
