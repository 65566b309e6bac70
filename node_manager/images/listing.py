"""The list of the files that an image had when it was unpacked, by which it is checked when it is used: by content once in the life of a
node manager, by size and time before each load after that. Files that came later, such as bytecode, do not count."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "files.json"
# [size, mtime in ns, sha256 of the content], or [target] of a link.
Entry = list[int | str]


def write(directory: Path, parts: list[str]) -> None:
    """Write the list of the files below these parts of the image into the image."""
    found = {path: entry for part in parts for path, entry in _entries(directory, part)}
    (directory / NAME).write_text(json.dumps(found), "utf-8")


def damage(directory: Path, *, contents: bool) -> str:
    """The first file that has changed, and how; '' if none has, or if there is no list, as in an earlier release."""
    try:
        listed: dict[str, Entry] = json.loads((directory / NAME).read_bytes())
    except FileNotFoundError:
        return ""
    except ValueError:
        return f"{NAME} cannot be read"
    for path, entry in listed.items():
        if why := _differs(directory / path, entry, contents=contents):
            return f"{path} {why}"
    return ""


def _differs(path: Path, entry: Entry, *, contents: bool) -> str:
    try:
        if len(entry) == 1:
            return "" if os.readlink(path) == entry[0] else "leads elsewhere"
        size, mtime_ns, digest = entry
        found = path.lstat()
        if found.st_size != size:
            return f"has {found.st_size} bytes instead of {size}"
        if (contents or found.st_mtime_ns != mtime_ns) and _digest(path) != digest:
            return "has another content"
    except OSError as e:
        return "is gone" if isinstance(e, FileNotFoundError) else f"cannot be read: {e.strerror}"
    return ""


def _entries(directory: Path, part: str) -> Iterator[tuple[str, Entry]]:
    for folder, folders, files in os.walk(directory / part):
        for name in [*files, *folders]:
            path = Path(folder, name)
            inside = str(path.relative_to(directory))
            if path.is_symlink():
                yield inside, [os.readlink(path)]
            elif path.is_file():
                found = path.stat()
                yield inside, [found.st_size, found.st_mtime_ns, _digest(path)]


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
