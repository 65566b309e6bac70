"""The log of an instance with any content: gigabytes without a line end, or countless lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Event

from node_manager.drivers import logfile
from udo_protocol.limits import LOG_LINE_BYTES

GIANT = 1 << 30
CUT = re.compile("… ([0-9,]+) bytes cut$")


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

    cut, *lines = logfile.tail(log, 0)
    assert cut == f"… {logfile.KEPT_LINES + 1:,} lines cut"
    assert len(lines) == logfile.KEPT_LINES and lines[-1] == "last"
    assert len(logfile.tail(log, 2 * logfile.KEPT_LINES)) == logfile.KEPT_LINES


def test_what_is_moved_aside_is_no_more_than_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\n" % n for n in range(10_000)))
    size = log.stat().st_size
    logfile.bound(log, 1000)

    note = f"… {size - 1000:,} bytes cut\n".encode()
    assert (log.stat().st_size, (tmp_path / "log.1").stat().st_size) == (0, len(note) + 1000)
    assert logfile.tail(log, 1) == ["9999"]
    assert logfile.tail(log, 0)[0].encode() + b"\n" == note


def test_who_follows_misses_nothing_that_is_moved_aside_and_is_told_what_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader, told, written = logfile.LogReader(log), [], 0
    assert list(reader.lines()) == []  # the log is not there yet
    with log.open("ab", buffering=0) as f:
        for each in range(2000):
            f.write(b"%d\n" % each)
            if each % 7 == 0:
                logfile.bound(log, 100)
            if each % 11 == 0:
                told += reader.lines()
    told += reader.lines()
    assert told == [str(n) for n in range(2000)]

    position = logfile.whole(log)
    with log.open("ab", buffering=0) as f:
        for each in range(1000):
            f.write(line := b"then %d\n" % each)
            written += len(line)
            logfile.bound(log, 100)
    cut, *rest = reader.lines()
    assert rest[-1] == "then 999"
    gone = int(cut.removeprefix("… ").removesuffix(" bytes cut").replace(",", ""))
    assert gone + sum(len(line) + 1 for line in rest) == written
    assert logfile.tail(log, 0, position) == [logfile.tail(log, 0)[0]]  # nothing before the position is left
    reader.close()


def test_the_last_words_of_who_is_removed_meanwhile_are_read(tmp_path: Path) -> None:
    (home := tmp_path / "instance").mkdir()
    reader = logfile.LogReader(log := home / "log")
    with log.open("ab", buffering=0) as f:
        f.write(b"first\n" * 50)
        logfile.bound(log, 60)
        f.write(b"more\n")
        assert list(reader.lines()) == ["… 240 bytes cut", *["first"] * 10, "more"]
        f.write(b"last\nwords")
    shutil.rmtree(home)
    assert [*reader.lines(), *reader.end()] == ["last", "words"]
    reader.close()


def test_also_what_was_moved_aside_of_a_log_that_is_removed_meanwhile_is_read(tmp_path: Path) -> None:
    (home := tmp_path / "instance").mkdir()
    reader = logfile.LogReader(log := home / "log")
    with log.open("ab", buffering=0) as f:
        f.write(b"first\n")
        assert list(reader.lines()) == ["first"]
        f.write(b"more\n" * 50)
        logfile.bound(log, 60)
        f.write(b"last\n")
    shutil.rmtree(home)
    assert [*reader.lines(), *reader.end()] == ["… 190 bytes cut", *["more"] * 12, "last"]
    reader.close()


def test_what_is_written_while_the_log_is_bounded_is_read_or_told_to_be_gone(tmp_path: Path) -> None:
    """Lines that are written between a look at the size and a truncation would be lost, and nobody would count them."""
    log, lines, width = tmp_path / "log", 400_000, 32
    log.touch()
    code = f"import sys\nf = open(sys.argv[1], 'ab', buffering=0)\nfor n in range({lines}): f.write(b'%0{width - 1}d\\n' % n)"
    with subprocess.Popen([sys.executable, "-c", code, log]) as writer:
        reader, seen, gone = logfile.LogReader(log), [], 0
        while True:
            ended = writer.poll() is not None
            logfile.bound(log, 64 << 10)
            for line in reader.lines():
                if found := CUT.match(line):
                    gone += int(found[1].replace(",", ""))
                else:
                    seen.append(line)
            if ended:
                break
        reader.close()
    whole = [int(line) for line in seen if len(line) == width - 1 and line.isdigit()]
    assert whole == sorted(set(whole)) and whole[-1] == lines - 1
    if not any(line.endswith("bytes cut here, or more") for line in seen):  # unless the file system cannot remove blocks from a file
        assert sum(len(line) + 1 for line in seen) + gone == lines * width
