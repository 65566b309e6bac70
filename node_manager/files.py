"""Small JSON files of a home, which are whole or absent; and its lock."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from udo_protocol.errors import Conflict, Unavailable
from udo_protocol.files import lock_within, replace_file


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replace `path`, readable by this user only; after a crash of this process it has the old content or the new, with `durable` also
    after one of the host."""
    replace_file(path, json.dumps(value).encode(), durable=durable)


def read_json(path: Path) -> Any:
    """The content of `path`; None if it is absent, unreadable or not JSON."""
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
    if not lock_within(fd, 0.0):
        os.close(fd)
        raise Conflict(taken.replace("{pid}", path.read_text().strip() or "unknown"))
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    return fd
