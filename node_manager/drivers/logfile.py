"""The log file of one instance: bounded by copy and truncate, read by tail and follow, whatever was written into it.

The writer holds the file open for appending, so that after a truncation it goes on at the start. A line is cut at its bound: an
operator may write gigabytes without ever ending one.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import BinaryIO

from udo_protocol.limits import LOG_LINE_BYTES

# Two files of this size are kept per instance: enough for a traceback storm, small beside a node's disk.
KEPT_BYTES = 4 << 20
# Lines of both that are held in memory at once: far more than is ever read.
KEPT_LINES = 100_000
# Read at a time.
_CHUNK_BYTES = 1 << 20
# A follower polls this often; without followers there is no polling.
FOLLOW_S = 0.25
# What a runtime puts before each line: "2026-01-31 12:00:00,123 ".
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})(?:\s|$)")


def split_stamp(line: str) -> tuple[str, str]:
    """(its time, the line without it); ('', line) of a line that carries none, as a program's that was started by the operator."""
    found = _STAMP.match(line)
    return (f"{found[1]}T{found[2]}.{found[3]}", line[found.end() :]) if found else ("", line)


def bound(path: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Once the file exceeds `kept_bytes`, move that much of its end to `<path>.1`."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > kept_bytes:
            with path.open("r+b") as f, path.with_name(path.name + ".1").open("wb") as kept:
                f.seek(-kept_bytes, 2)
                kept.write(f.read(kept_bytes))
                f.truncate(0)


class Lines:
    """Bytes in, lines out, each with a note of what was cut of it."""

    def __init__(self, *, cut_before: bool = False) -> None:
        self._part, self._beyond = b"", 0
        self._before = cut_before

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that end in `data`."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            yield self._line()
        self._add(rest)

    def end(self) -> Iterator[str]:
        """What is there of a line that has no end yet."""
        if self._part:
            yield self._line()

    def _add(self, piece: bytes) -> None:
        room = LOG_LINE_BYTES - len(self._part)
        self._part += piece[:room]
        self._beyond += len(piece[room:])

    def _line(self) -> str:
        text = self._part.decode("utf-8", "replace")
        text = f"… {text}" if self._before else text
        text = f"{text} … {self._beyond:,} bytes cut" if self._beyond else text
        self._part, self._beyond, self._before = b"", 0, False
        return text


def whole(path: Path) -> int:
    """Where its last complete line ends: up to there is what `tail` reads, from there on what `follow` does."""
    with contextlib.suppress(OSError), path.open("rb") as f:
        size = f.seek(0, 2)
        start = f.seek(max(size - _CHUNK_BYTES, 0))
        end = f.read(size - start).rfind(b"\n") + 1
        return start + end if end or not start else size
    return 0


def tail(path: Path, lines: int, position: int | None = None) -> list[str]:
    """The last `lines` lines (0 = all that is kept) in front of `position`, or of all, without line ends."""
    found: deque[str] = deque(maxlen=min(lines, KEPT_LINES) or KEPT_LINES)
    for p, end in ((path.with_name(path.name + ".1"), None), (path, position)):
        with contextlib.suppress(OSError), p.open("rb") as f:
            size = f.seek(0, 2)
            size = size if end is None else min(size, end)
            start = f.seek(max(size - KEPT_BYTES, 0))
            split = Lines(cut_before=start > 0)
            for data in _chunks(f, size):
                found.extend(split.feed(data))
            found.extend(split.end())
    return list(found)


def _chunks(f: BinaryIO, end: int) -> Iterator[bytes]:
    """Up to `end` and no further: the writer may be faster."""
    while (left := end - f.tell()) > 0 and (data := f.read(min(left, _CHUNK_BYTES))):
        yield data


def follow(path: Path, position: int, stop: Event, running: Callable[[], bool]) -> Iterator[str]:
    """The lines behind `position`, as they are written, until the writer ends or `stop` is set."""
    split = Lines()
    while True:
        last = stop.wait(FOLLOW_S) or not running()
        with contextlib.suppress(OSError), path.open("rb") as f:
            size = f.seek(0, 2)
            f.seek(position if position <= size else 0)
            for data in _chunks(f, size):
                position = f.tell()
                yield from split.feed(data)
        if last:
            yield from split.end()
            return
