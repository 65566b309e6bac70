"""Small files that are whole or absent: JSON written beside its place and renamed into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import get_ident
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Replace `path`, readable by this user only; a crash leaves the old content or the new."""
    new = path.with_name(f".{path.name}.{get_ident()}.new")  # two threads may write the same file
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump(value, f)
    os.replace(new, path)


def read_json(path: Path) -> Any:
    """Its content; None if it is absent or no JSON (then it says nothing that may be relied on)."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
