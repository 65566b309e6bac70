"""The log file of one instance: bounded by copy and truncate, read by tail and follow.

The writer holds the file open for appending, so that after a truncation it goes on at the start.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

# Two files of this size are kept per instance: enough for a traceback storm, small beside a node's disk.
KEPT_BYTES = 4 << 20
# A follower looks up this often; nobody polls when nobody follows.
FOLLOW_S = 0.25


def bound(path: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Once the file exceeds `kept_bytes`, move its content to `<path>.1`."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > kept_bytes:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            with path.open("r+b") as f:
                f.truncate(0)


def tail(path: Path, lines: int) -> list[str]:
    """The last `lines` lines (0 = all that is kept, -1 = none), without line ends."""
    if lines < 0:
        return []
    found: deque[str] = deque(maxlen=lines or None)
    for p in (path.with_name(path.name + ".1"), path):
        with contextlib.suppress(OSError), p.open("r", encoding="utf-8", errors="replace") as f:
            found.extend(line.rstrip("\n") for line in f)
    return list(found)


def read(path: Path, *, tail_lines: int, follow: bool, stop: Event, running: Callable[[], bool]) -> Iterator[str]:
    """The tail, then new lines until the writer ends or `stop` is set."""
    position = path.stat().st_size if path.exists() else 0
    yield from tail(path, tail_lines)
    part = ""
    while follow:
        last = stop.wait(FOLLOW_S) or not running()
        with contextlib.suppress(OSError), path.open("rb") as f:
            size = f.seek(0, 2)
            f.seek(position if position <= size else 0)
            data = f.read()
            position = f.tell()
            *whole, part = (part + data.decode("utf-8", "replace")).split("\n")
            yield from whole
        if last:
            if part:
                yield part
            return
