"""The log of an instance, whatever was written into it: gigabytes without a line end, lines without number."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from threading import Event

from node_manager.drivers import logfile
from udo_protocol.limits import LOG_LINE_BYTES

GIANT = 1 << 30


def test_a_line_of_a_gigabyte_is_read_as_its_beginning_and_a_note(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as f:
        f.write(b"before\n")
        os.truncate(f.fileno(), GIANT)  # zeros that take no disk
        f.seek(0, 2)
        f.write(b"\nafter\n")

    cut, after = logfile.tail(log, 20)[-2:]
    assert after == "after"
    assert "bytes cut" in cut and len(cut) < LOG_LINE_BYTES + 100


def test_a_follower_gets_a_long_line_cut_and_what_follows_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    written = iter([True, False])

    def running() -> bool:
        if next(written):
            log.write_bytes(b"x" * (3 << 20) + b"\nafter\npart")
            return True
        return False

    cut, *rest = logfile.follow(log, 0, Event(), running)
    assert cut == f"{'x' * LOG_LINE_BYTES} … {(3 << 20) - LOG_LINE_BYTES:,} bytes cut"
    assert rest == ["after", "part"]


def test_what_is_shown_and_what_is_followed_are_all_lines_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for there in (b"", b"one\n", b"one\ntwo", b"one\ntwo\nth"):
        log.write_bytes(there)
        position = logfile.whole(log)
        log.write_bytes(b"one\ntwo\nthree\n")  # before it is read
        assert [*logfile.tail(log, 0, position), *logfile.follow(log, position, Event(), lambda: False)] == ["one", "two", "three"]


def test_lines_without_number_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\n" * (2 * logfile.KEPT_LINES) + b"last\n")

    lines = logfile.tail(log, 0)
    assert len(lines) == logfile.KEPT_LINES and lines[-1] == "last"


def test_what_is_moved_aside_is_no_more_than_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\n" % n for n in itertools.islice(itertools.count(), 10_000)))
    logfile.bound(log, 1000)

    assert (log.stat().st_size, (tmp_path / "log.1").stat().st_size) == (0, 1000)
    assert logfile.tail(log, 1) == ["9999"]
