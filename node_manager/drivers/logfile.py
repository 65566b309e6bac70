"""The log file of one instance: its end is copied aside and taken out; tail and follow read it, whatever was written into it.

The writer holds the file open for appending, and does not wait. Bytes are taken out by the file system in one step, where it can, since
bytes that are written between a look at the size and a truncation would be lost unseen. Positions count all bytes that were ever written,
so a follower misses none: those it has not read yet are in `<path>.1`, whose first line says how many bytes are gone for good. A line is
cut at its bound: an operator may write gigabytes without ever ending one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import BinaryIO

from udo_protocol.limits import LOG_LINE_BYTES

# Two files of this size are kept per instance: enough for a traceback storm, small beside a node's disk.
KEPT_BYTES = 4 << 20
# Lines of both files that are held in memory at once: far more than is ever read.
KEPT_LINES = 100_000
# Bytes read at a time.
_CHUNK_BYTES = 1 << 20
# A follower polls this often; without followers there is no polling.
FOLLOW_S = 0.25
# The time stamp that a runtime puts before each line: "2026-01-31 12:00:00,123 ".
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})(?:\s|$)")
_CUT = re.compile("… ([0-9,]+) bytes cut\n".encode())
_libc, _COLLAPSE_RANGE = ctypes.CDLL(None, use_errno=True), 8
# Held while bytes move from one file to the other, so that nobody reads meanwhile.
_moving = Lock()


def split_stamp(line: str) -> tuple[str, str]:
    """(time, the line without it); ('', line) of a line without a time, such as those of a program that the operator started."""
    found = _STAMP.match(line)
    return (f"{found[1]}T{found[2]}.{found[3]}", line[found.end() :]) if found else ("", line)


def bound(path: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Once the file exceeds `kept_bytes`, move that much of its end to `<path>.1`, behind a note of how much went before it."""
    with _moving, contextlib.suppress(OSError):
        if path.stat().st_size > kept_bytes:
            _move(path, kept_bytes)


def _move(path: Path, kept_bytes: int) -> None:
    with path.open("r+b") as f:
        size = f.seek(0, 2)
        cut = _beginning(path) + size - kept_bytes
        at = f.seek(size - kept_bytes)
        begun, most = at, at + 2 * kept_bytes  # beyond the former end, since the writer goes on
        with _aside(path).open("wb") as kept:
            kept.write(_note(cut))
            while text := f.read(min(most - at, _CHUNK_BYTES)):
                kept.write(text)
                at += len(text)
            if (whole := _whole_blocks(f.fileno(), at)) > begun:
                kept.seek(whole - at, 1)
                kept.truncate()
                if _take_out(f.fileno(), whole):
                    return
                f.seek(whole)
                kept.write(f.read(at - whole))
        lost = f.seek(0, 2) - at
        f.truncate(0)
    if lost or at > size:
        with path.open("ab") as log:
            log.write(_note(lost) if at == size else f"… {lost:,} bytes cut here, or more\n".encode())


def _whole_blocks(fd: int, end: int) -> int:
    """The size of the whole blocks of the file system in front of `end`; a file cannot lose its last one."""
    block = os.fstatvfs(fd).f_bsize
    return (end - 1) // block * block


def _take_out(fd: int, size: int) -> bool:
    """Take the first `size` bytes, whole blocks, out of the file; False if its file system cannot do that (only ext4 and XFS can)."""
    return bool(_libc.fallocate(fd, _COLLAPSE_RANGE, ctypes.c_long(0), ctypes.c_long(size)) == 0)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _note(cut_bytes: int) -> bytes:
    return f"… {cut_bytes:,} bytes cut\n".encode()


def _moved(aside: BinaryIO) -> tuple[int, int, int]:
    """(position of its first byte behind the note, length of the note, position behind its last byte) of an open `<path>.1`."""
    aside.seek(0)
    found = _CUT.match(aside.read(64))
    cut, note = (int(found[1].replace(b",", b"")), found.end()) if found else (0, 0)
    return cut, note, cut + aside.seek(0, 2) - note


def _beginning(path: Path) -> int:
    """The position of the file's first byte."""
    with contextlib.suppress(FileNotFoundError), _aside(path).open("rb") as aside:
        return _moved(aside)[2]
    return 0


class Lines:
    """Bytes in, lines out, each with a note of the bytes that were cut."""

    def __init__(self) -> None:
        self._part, self._beyond = b"", 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that end in `data`."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            yield self._line()
        self._add(rest)

    def end(self) -> Iterator[str]:
        """The line that has no end yet, as far as it is there."""
        if self._part or self._beyond:
            yield self._line()

    def _add(self, piece: bytes) -> None:
        room = LOG_LINE_BYTES - len(self._part)
        self._part += piece[:room]
        self._beyond += len(piece[room:])

    def _line(self) -> str:
        text = self._part.decode("utf-8", "replace")
        text = f"{text} … {self._beyond:,} bytes cut" if self._beyond else text
        self._part, self._beyond = b"", 0
        return text


class LogReader:
    """Reads a log as it is written, from `position` on; also to its end if it has been removed meanwhile."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path, self._at = path, position
        self._files: tuple[BinaryIO, BinaryIO] | None = None  # the log, and `<path>.1`
        self._split = Lines()

    def lines(self) -> Iterator[str]:
        """The lines that were ended since the last call, with a note where bytes are gone."""
        while True:
            gone, data = self._more()
            if gone:
                yield from self._split.end()
                yield _note(gone).decode().rstrip()
            if not data:
                return
            yield from self._split.feed(data)

    def end(self) -> Iterator[str]:
        """The last line, which has no end yet."""
        yield from self._split.end()

    def close(self) -> None:
        """Close the files."""
        for file in self._files or ():
            file.close()

    def _more(self) -> tuple[int, bytes]:
        """How many bytes are gone, and some of those that follow them."""
        with _moving:
            if self._files is None:
                with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
                    # Without buffers, which would not see that others write. The second file exists before anything is moved to it: so it
                    # can be read when both have been removed.
                    log = opened.enter_context(self._path.open("rb", buffering=0))
                    self._files = log, _aside(self._path).open("a+b", buffering=0)
                    opened.pop_all()
            if self._files is None:
                return 0, b""
            file, aside = self._files
            cut, note, begin = _moved(aside)
            end = begin + file.seek(0, 2)
            if end < self._at:  # its writer has begun anew
                self._at = begin
            gone, self._at = max(cut - self._at, 0), max(cut, self._at)
            if self._at < begin:
                aside.seek(note + self._at - cut)
                data = aside.read(min(begin - self._at, _CHUNK_BYTES))
            else:
                file.seek(self._at - begin)
                data = file.read(min(end - self._at, _CHUNK_BYTES))
            self._at += len(data)
            return gone, data


def whole(path: Path) -> int:
    """The position at which its last complete line ends: `tail` reads up to it, `follow` from it on."""
    with _moving, contextlib.suppress(OSError), path.open("rb") as f:
        begin, size = _beginning(path), f.seek(0, 2)
        start = f.seek(max(size - _CHUNK_BYTES, 0))
        end = f.read(size - start).rfind(b"\n") + 1
        return begin + (start + end if end or not start else size)
    return 0


def tail(path: Path, lines: int, position: int | None = None) -> list[str]:
    """The last `lines` lines (0 = all that are kept) in front of `position`, or of the whole log, without line ends."""
    kept = min(lines, KEPT_LINES) or KEPT_LINES
    found: deque[str] = deque(maxlen=kept)
    count = 0
    with _moving:
        for part in _parts(path, position):
            found.append(part)
            count += 1
    return [f"… {count - kept:,} lines cut", *found] if count > kept and not lines else list(found)


def _parts(path: Path, position: int | None) -> Iterator[str]:
    """The lines of both files up to `position`."""
    begin = 0
    with contextlib.suppress(FileNotFoundError), _aside(path).open("rb") as aside:
        cut, note, begin = _moved(aside)
        aside.seek(0)
        yield from _lines(aside, note + begin - cut if position is None else note + min(max(position, cut), begin) - cut)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as f:
        size = f.seek(0, 2)
        size = size if position is None else min(max(position - begin, 0), size)
        if (start := f.seek(max(size - KEPT_BYTES, 0))) > 0:
            yield _note(start).decode().rstrip()
        yield from _lines(f, size)


def _lines(f: BinaryIO, end: int) -> Iterator[str]:
    """The lines up to `end` and no further: the writer may be faster."""
    split = Lines()
    while (left := end - f.tell()) > 0 and (data := f.read(min(left, _CHUNK_BYTES))):
        yield from split.feed(data)
    yield from split.end()


def follow(path: Path, position: int, stop: Event, running: Callable[[], bool]) -> Iterator[str]:
    """The lines behind `position`, as they are written, until the writer ends or `stop` is set."""
    with contextlib.closing(LogReader(path, position)) as reader:
        last = False
        while not last:
            last = stop.wait(FOLLOW_S) or not running()
            yield from reader.lines()
        yield from reader.end()
