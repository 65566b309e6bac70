"""Copies a large body from source to sink and hashes it in parallel, with a few buffers that are reused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

PIECE = 1 << 20
# One being filled, one being written, one being hashed.
_BUFFERS = 3


def pour(fill: Callable[[memoryview], int], take: Callable[[memoryview], object], digest: Callable[[memoryview], object]) -> int:
    """Copy until `fill`, which fills a buffer, returns 0; pass each filled buffer to `take` and, in order and in a thread of its own, to
    `digest`. Returns the number of bytes. Bytes that came before an error of `fill` have been taken and digested when it is raised."""
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
    """Wait until the oldest busy buffer has been digested, and return it."""
    done, buffer = busy.popleft()
    done.result()
    return buffer
