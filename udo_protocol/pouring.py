"""Moves a large body from where it comes to where it goes and hashes it beside, in few buffers that are used again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

PIECE = 1 << 20
# One is filled, one written, one hashed.
_BUFFERS = 3


def pour(fill: Callable[[memoryview], int], take: Callable[[memoryview], object], digest: Callable[[memoryview], object]) -> int:
    """How many bytes came: each is put into a buffer by `fill` (0 says that this was all), given to `take`, and, in order and
    in a thread beside, to `digest`. What had come before an error of `fill` has been taken and digested when it is raised."""
    busy: deque[tuple[Future[object], memoryview]] = deque()
    moved = 0
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as beside:
        while True:
            buffer = memoryview(bytearray(PIECE)) if len(busy) < _BUFFERS else _free(busy)
            came = fill(buffer)
            if not came:
                break
            busy.append((beside.submit(digest, buffer[:came]), buffer))
            take(buffer[:came])
            moved += came
        while busy:
            _free(busy)
    return moved


def _free(busy: deque[tuple[Future[object], memoryview]]) -> memoryview:
    """The buffer that was given away first, when it has been digested."""
    done, buffer = busy.popleft()
    done.result()
    return buffer
