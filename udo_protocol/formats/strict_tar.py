"""Reads an untrusted tar front to back, in bounded memory, and refuses anything that it does not know or would have to guess.

It takes files, directories and symbolic links in POSIX (pax) or GNU form, with correct checksums, unique extended headers and the end
marks. Standard library only, since a bare interpreter runs it. `tarfile` is more lenient: it ends quietly at a garbled header, reads
extended headers of any length into memory, and goes back in the file for a negative size.

`foreign`: for archives of other tools that are only read from, never unpacked: hard links are reported, and details that matter only
when unpacking (global headers, unknown extended ones, special modes) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK = 512
FILE, DIRECTORY, LINK, HARD_LINK = "file", "directory", "link", "hard link"
# The largest extended header: a path and a link of the longest length that Linux knows, and a few times and names.
EXTENDED_BYTES = 16 << 10
# No file system takes a longer name; no Python package is nested deeper, and a recursive walk of the tree must not run out of stack.
NAME_BYTES, DEPTH, LINK_BYTES = 255, 40, 1024
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
# Fields of mode, user, group, time and device numbers: octal, or GNU's form of large numbers, or empty.
_NUMBERS = ((100, 108), (108, 116), (116, 124), (136, 148), (329, 337), (337, 345))
_ANY_NUMBER = re.compile(rb" *[0-7]*[ \0]*|[\x80\xff].*", re.DOTALL)
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\0\n]{1,100})=")
_POSIX, _GNU = b"ustar\x0000", b"ustar  \x00"
_KINDS = {b"0": FILE, b"5": DIRECTORY, b"2": LINK}
_OTHERS = {b"1": "a hard link", b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file", b"g": "a global header"}
# Keys of extended headers that are accepted; all but the first three are ignored.
_USED = ("path", "linkpath", "size")
_PAX = frozenset((*_USED, "atime", "ctime", "mtime", "uid", "gid", "uname", "gname", "comment"))
# Prefixes of keys that change the meaning of an entry's name or content; refused even in foreign archives.
_CHANGING = ("GNU.sparse.", "hdrcharset")
_SPECIAL_BITS = 0o7000


class TarRefused(Exception):
    """The archive is not one that this reader takes; says why, and shows only a little of the archive's content."""


class Readable(Protocol):
    """A file of uncompressed bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


@dataclass(frozen=True)
class Member:
    """One entry. `path` has no empty parts, `.` or `..`; `target` is a link's, unchanged; `at` is the offset of the content."""

    path: tuple[str, ...]
    kind: str
    size: int
    executable: bool
    target: str
    at: int

    @property
    def name(self) -> str:
        """The path, for a message."""
        return shown("/".join(self.path))


def shown(text: object) -> str:
    """Untrusted text for a message: cut, and harmless on a terminal."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 120 else f"{quoted[:100]}... ({len(quoted)} characters)"


class Reader:
    """Iterates over the members; `content` reads the content of the latest one. Reads at most `most_bytes`, and `most_entries`
    headers."""

    def __init__(self, source: Readable, most_bytes: int, most_entries: int, *, foreign: bool = False) -> None:
        self._foreign, self._kinds = foreign, {**_KINDS, b"1": HARD_LINK} if foreign else _KINDS
        self._source, self._most_bytes, self._most_entries = source, most_bytes, most_entries
        self.read_bytes = self.entries = 0
        self._left = self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            for _ in self.content():  # the part that the caller has not read
                pass
            self._exactly(self._padding)
            self._padding = 0

    def content(self) -> Iterator[bytes]:
        """The rest of the latest member's content, in pieces."""
        while self._left:
            piece = self._exactly(min(self._left, _PIECE_BYTES))
            self._left -= len(piece)
            yield piece

    def count(self) -> None:
        """Count one more entry, e.g. a parent directory without an entry of its own."""
        self.entries += 1
        if self.entries > self._most_entries:
            raise TarRefused(f"it has more than {self._most_entries} entries")

    def _bound(self, size: int) -> None:
        if size > self._most_bytes:
            raise TarRefused(f"it unpacks to more than {self._most_bytes >> 20} MiB")

    def _exactly(self, size: int) -> bytes:
        self.read_bytes += size
        self._bound(self.read_bytes)
        pieces, left = [], size
        while left:
            if not (piece := self._source.read(left)):
                raise TarRefused(f"it is truncated after {self.read_bytes - left} bytes")
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next(self) -> Member | None:
        """The next member, with its extended headers applied; None at the end of the archive."""
        extended: dict[str, str] = {}
        kinds = b""
        while (block := self._exactly(BLOCK)) != _ZEROS:
            self.count()
            kind, size = _checked(block)
            skipped = kind == b"g" and self._foreign
            if kind not in (b"x", b"L", b"K") and not skipped:
                return self._member(block, kind, size, extended)
            if kind in kinds or b"x" in kinds + (kind if kinds else b""):
                raise TarRefused("it has two extended headers in front of one entry")
            if size > EXTENDED_BYTES:
                raise TarRefused(f"an extended header has {size} bytes; at most {EXTENDED_BYTES} are read")
            data = self._exactly(size)
            self._exactly(-size % BLOCK)
            if skipped:
                continue
            kinds += kind
            if kind == b"x":
                extended |= _records(data, self._foreign)
            else:
                extended["path" if kind == b"L" else "linkpath"] = _text(data.removesuffix(b"\0"))
            if empty := [key for key, value in extended.items() if not value]:
                raise TarRefused(f"an extended header has an empty {empty[0]}")
        if kinds:
            raise TarRefused("its last entry is an extended header")
        if self._exactly(BLOCK) != _ZEROS:
            raise TarRefused("its end is marked by one empty block, expected two")
        while rest := self._source.read(_PIECE_BYTES):
            self.read_bytes += len(rest)
            self._bound(self.read_bytes)
            if rest.count(0) != len(rest):
                raise TarRefused("data follows after its end")
        return None

    def _member(self, block: bytes, kind: bytes, size: int, extended: dict[str, str]) -> Member:
        name = extended.get("path") or _name(block)
        if kind not in self._kinds:
            what = _OTHERS.get(kind, f"of type {kind!r}")
            raise TarRefused(f"{shown(name)} is {what}; expected a file, a directory or a symbolic link")
        if "size" in extended:
            if not re.fullmatch("[0-9]{1,18}", extended["size"]):
                raise TarRefused(f"{shown(name)} has the size {shown(extended['size'])}")
            size = int(extended["size"])
        self._bound(self.read_bytes + size)
        found = self._kinds[kind]
        if size and found != FILE:
            raise TarRefused(f"{shown(name)} is a {found} with {size} bytes of content")
        mode = _number(block[100:108], "mode")
        if mode & _SPECIAL_BITS and not self._foreign:
            raise TarRefused(f"{shown(name)} has mode {mode:o}; set-user-ID, set-group-ID and sticky files are not accepted")
        target = (extended.get("linkpath") or _text(_filled(block[157:257]))) if found in (LINK, HARD_LINK) else ""
        if found in (LINK, HARD_LINK) and not 0 < len(target.encode()) <= LINK_BYTES:
            raise TarRefused(f"{shown(name)} links to {shown(target)}; expected 1 to {LINK_BYTES} bytes")
        self._left, self._padding = size, -size % BLOCK
        return Member(_path(name, directory=found == DIRECTORY), found, size, bool(mode & 0o100), target, self.read_bytes)


def _checked(block: bytes) -> tuple[bytes, int]:
    """The (type, size) of a header, after checking its checksum and form."""
    if sum(block[:148]) + 8 * 32 + sum(block[156:]) != _number(block[148:156], "checksum"):
        raise TarRefused("a header is garbled: its checksum is wrong")
    if block[257:265] not in (_POSIX, _GNU):
        raise TarRefused("a header is neither of POSIX nor of GNU form")
    for begin, end in _NUMBERS:
        if not _ANY_NUMBER.fullmatch(block[begin:end]):
            raise TarRefused(f"a header is garbled: {block[begin:end]!r} is no number")
    return block[156:157], _number(block[124:136], "size")


def _number(field: bytes, what: str) -> int:
    if not (found := _OCTAL.fullmatch(field)):
        raise TarRefused(f"a header's {what} is {field!r}, expected an octal number")
    return int(found[1], 8)


def _filled(field: bytes) -> bytes:
    """A text field without its padding."""
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise TarRefused(f"a name has a NUL in the middle: {shown(field)}")
    return text


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise TarRefused(f"the name {shown(data)} is not UTF-8") from None
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        raise TarRefused(f"the name {shown(text)} has control characters")
    return text


def _name(block: bytes) -> str:
    name, prefix = _text(_filled(block[:100])), block[345:500]
    if block[257:265] == _GNU:
        if prefix.strip(b"\0"):
            raise TarRefused(f"{shown(name)} has fields of GNU tar that are not known here")
        return name
    before = _text(_filled(prefix))
    return f"{before}/{name}" if before else name


def _records(data: bytes, foreign: bool) -> dict[str, str]:
    """The records of a pax header, each `LENGTH KEY=VALUE\\n`."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        if not (match := _RECORD.match(data, at)):
            raise TarRefused(f"an extended header is garbled at {shown(data[at : at + 40])}")
        end = at + int(match[1])
        key = match[2].decode("latin-1")
        if end > len(data) or end <= match.end() or data[end - 1 : end] != b"\n":
            raise TarRefused(f"an extended header's {shown(key)} has a wrong length")
        known = key in _PAX or (foreign and not key.startswith(_CHANGING))
        if not known or key in found:
            raise TarRefused(f"an extended header says {shown(key)}{' twice' if key in found else ', which is not supported'}")
        value = data[match.end() : end - 1]
        found[key] = _text(value) if key in _USED else ""
        at = end
    return {k: v for k, v in found.items() if k in _USED}


def _path(name: str, *, directory: bool) -> tuple[str, ...]:
    if directory and name in (".", "./"):
        return ()
    parts = tuple((name.removesuffix("/") if directory else name).removeprefix("./").split("/"))
    if any(p in ("", ".", "..") for p in parts):
        raise TarRefused(f"{shown(name)} is not a path inside it")
    if len(parts) > DEPTH or any(len(p.encode()) > NAME_BYTES for p in parts):
        raise TarRefused(f"{shown(name)} is nested deeper than {DEPTH} folders, or a name in it has more than {NAME_BYTES} bytes")
    return parts
