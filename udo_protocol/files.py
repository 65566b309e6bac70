"""Files that several processes share: replaced as a whole, or held by one of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from threading import get_ident

_LOOK_S = 0.01


def replace_file(path: Path, content: bytes | memoryview, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace `path`: whoever reads it finds the old content or the new. With `durable` that holds after a crash of the host, too."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.new")  # others may be about to write the same file
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock_within(fd: int, wait_s: float, *, shared: bool = False) -> bool:
    """Hold the file's lock until its descriptor is closed; False if other processes hold it for that long. `shared`: only those that want
    it for themselves are in the way."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_LOOK_S)
