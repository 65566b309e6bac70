"""Small JSON files that are whole or absent: written beside their place, then renamed; and files that one process holds."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from threading import get_ident
from typing import Any

from udo_protocol.errors import Conflict, Unavailable


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replace `path`, readable by this user only; after a crash of this process it has the old content or the new, with `durable` also
    after one of the host."""
    new = path.with_name(f".{path.name}.{get_ident()}.new")  # two threads may write the same file
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump(value, f)
        if durable:
            f.flush()
            os.fsync(fd)
    os.replace(new, path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_json(path: Path) -> Any:
    """Its content; None if it is absent or no JSON, and so cannot be relied on."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def read_kept(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a file that nothing else can replace; {} if the file is absent. Unavailable, with the remedy, if it is damaged."""
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise Unavailable(f"{path} is damaged: expected a JSON object. {remedy}")
    return found


def lock(path: Path, taken: str) -> int:
    """Hold `path` until the returned descriptor is closed. Conflict while another process does, with the text `taken` and its {pid}."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(taken.replace("{pid}", path.read_text().strip() or "unknown")) from None
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    return fd
