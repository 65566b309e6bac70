"""The state server's append-only file: finds where it becomes unreadable and cuts it there, after keeping a copy.

The file is `appendonlydir/` of the server: a manifest that names a base (a snapshot) and, last, the writes since. Only the writes are ever
cut, and only behind the last whole command, a MULTI with its EXEC counting as one. Since every write is on the disk before it is confirmed,
a command that a crash left unfinished was confirmed to nobody. Whole commands behind unreadable bytes were confirmed, so they are discarded
only on request.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from node_manager.files import read_json, write_json
from udo_protocol.errors import Unavailable

_COMMAND = re.compile(rb"\*[1-9]\d*\r\n\$\d+\r\n")
# Every write of a session's groups changes its manifest, too.
_SESSION = re.compile(rb"udo:([^:\s]{1,60}):\d+:(?:m|runs):([^\r\n]{1,200})\r\n")
# The longest line before a value: `*` or `$` and a number below 2^63.
_LINE_BYTES = 24
# Sessions that a message names; the others are counted.
_NAMED = 20


@dataclass(frozen=True)
class Cut:
    """A cut of a file: from where, how many bytes, its commands and sessions as far as they can be read, and where the copy is."""

    file: str
    offset: int
    lost_bytes: int
    commands: int
    sessions: list[str]
    copy: str
    at: str

    def __str__(self) -> str:
        whole = f"{self.commands} whole writes among them"
        if not self.commands:
            whole = "no complete write among them: no confirmed write is lost, unless these bytes have replaced one"
        touched = ", ".join(self.sessions) or "none that can be read"
        return (
            f"{self.file} was unreadable from byte {self.offset} on: the last {self.lost_bytes} bytes were cut off ({whole}). "
            f"Sessions named there: {touched}. The file as it was: {self.copy} (remove it when it is not needed any more)"
        )


def mend(directory: Path, *, force: bool = False) -> Cut | None:
    """Cut the writes of the server in `directory` where they become unreadable; None if they are whole.

    Unavailable if whole commands follow there, unless `force`.
    """
    file = _writes(directory)
    if file is None or not file.stat().st_size:
        return None
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end, stop, _ = _readable(data, 0)
        if end == len(data):
            return None
        commands = _behind(data, stop)
        found = sorted({f"{m[1].decode('utf-8', 'replace')}: {m[2].decode('utf-8', 'replace')}" for m in _SESSION.finditer(data, end)})
        lost = len(data) - end
    sessions = found[:_NAMED] + ([f"{len(found) - _NAMED} more"] if len(found) > _NAMED else [])
    if commands and not force:
        raise Unavailable(
            f"{file} has unreadable bytes at {stop}, and {commands} whole writes behind them, which were confirmed (sessions: "
            f"{', '.join(sessions) or 'unknown'}). Restore the file from a backup; or discard these {lost} bytes, of which a copy is "
            "kept, by starting once with --cut-state (udo up, udo node): queries of these sessions then find older state and say so, "
            "unless they have a store="
        )
    now = datetime.now(UTC)
    copy = file.with_name(f"{file.name}.{now:%Y%m%dT%H%M%S}.unreadable")
    try:
        shutil.copyfile(file, copy)
    except OSError as e:
        raise Unavailable(f"{file} has unreadable bytes at {stop} and is not cut there, since no copy can be kept: {e}") from e
    cut = Cut(str(file), end, lost, commands, sessions, str(copy), now.isoformat(timespec="seconds"))
    write_json(_note(directory), asdict(cut))
    with file.open("r+b") as writes:
        writes.truncate(end)
        os.fsync(writes.fileno())
    return cut


def last_cut(directory: Path) -> Cut | None:
    """The last cut here; None once its copy has been removed."""
    record = read_json(_note(directory))
    return Cut(**record) if record and Path(record["copy"]).exists() else None


def _note(directory: Path) -> Path:
    return directory / "cut.json"


def _writes(directory: Path) -> Path | None:
    """The file that the server appends to: the last `type i` of its manifest."""
    folder = directory / "appendonlydir"
    try:
        lines = (folder / "appendonly.aof.manifest").read_text("utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    names = [words[1] for words in map(str.split, lines) if words[:1] == ["file"] and words[-2:] == ["type", "i"]]
    return folder / names[-1] if names and (folder / names[-1]).is_file() else None


def _readable(data: mmap.mmap, at: int) -> tuple[int, int, int]:
    """Read the commands from `at` on; return where the last whole one ends, where reading stops, and how many are whole."""
    good, count, pending, inside = at, 0, 0, False
    while (read := _command(data, at)) is not None:
        at, name = read
        pending += 1
        inside = name == b"MULTI" or (inside and name != b"EXEC")
        if not inside:
            good, count, pending = at, count + pending, 0
    return good, at, count


def _behind(data: mmap.mmap, at: int) -> int:
    """The number of whole commands anywhere behind `at`."""
    count = 0
    while (begin := _COMMAND.search(data, at)) is not None:
        _, stop, found = _readable(data, begin.start())
        count += found
        at = max(stop, begin.end())
    return count


def _command(data: mmap.mmap, at: int) -> tuple[int, bytes] | None:
    """(end, name in upper case) of the command that begins at `at`; None if there is no whole one."""
    if (line := _number(data, at, b"*")) is None or not line[0]:
        return None
    arguments, at = line
    first = b""
    for i in range(arguments):
        if (line := _number(data, at, b"$")) is None:
            return None
        size, at = line
        if data[at + size : at + size + 2] != b"\r\n":
            return None
        if i == 0:
            first = data[at : at + min(size, _LINE_BYTES)].upper()
        at += size + 2
    return at, first


def _number(data: mmap.mmap, at: int, mark: bytes) -> tuple[int, int] | None:
    """(number, where the line ends) of `*3` or `$12` at `at`."""
    if data[at : at + 1] != mark or (end := data.find(b"\r\n", at, at + _LINE_BYTES)) < 0:
        return None
    digits = data[at + 1 : end]
    return (int(digits), end + 2) if digits.isdigit() else None
