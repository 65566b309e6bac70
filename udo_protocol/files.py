"""Files that several processes share: replaced as a whole, or held by one of them."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident

_LOOK_S = 0.01


def replace_file(path: Path, content: bytes | memoryview, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace `path`: a reader finds either the old or the new content. With `durable` this holds even after a crash of the host."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.new")  # others may be about to write the same file
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def new_beside(path: Path) -> Path:
    """An empty file in the folder of `path`, which only its owner may read and no other process writes: to be written, then renamed."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(fd)
    return Path(name)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` (see `new_beside`) that replaces it at the end of the block; after an error it is removed."""
    new = new_beside(path)
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def lock_within(fd: int, wait_s: float, *, shared: bool = False) -> bool:
    """Take the file's lock and hold it until the descriptor is closed; False if others still hold it after `wait_s`. A `shared` lock
    conflicts only with exclusive ones."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_LOOK_S)
