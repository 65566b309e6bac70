"""The folders of a registry process, and the processes that may share them. Locked before anything is opened or served.

DATA belongs to one process: its address and port, and SQLite's file. SHARED, by default the same folder, holds the images and the token:
all processes of one PostgreSQL database share it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sqlalchemy import make_url

from registry.config import RegistrySettings
from registry.content.uploads import tidy
from registry.store.postgresql import is_postgresql
from udo_protocol.errors import Conflict
from udo_protocol.files import lock_within

# The worker of a killed registry notices within one second that its master is gone, and ends an upload under way within five; until
# then it may still commit.
LEFTOVER_S = 8.0
_OTHERS = "several processes need one PostgreSQL database, the same --shared folder, and a --data each"


@contextlib.contextmanager
def taken(config: RegistrySettings) -> Iterator[None]:
    """Hold the locks of the folders. Conflict if another registry has one that this one needs for itself."""
    several = is_postgresql(config.database)
    with contextlib.ExitStack() as locks:
        locks.enter_context(_locked(config.data / "lock", f"{config.data}; stop it first, or give this one another --data"))
        alone = True
        if config.shared != config.data:
            file = locks.enter_context(
                _locked(config.shared / "lock", f"{config.shared} for itself; stop it first: {_OTHERS}", several=several)
            )
            alone = not several or _only_one(file)
        if config.database.startswith("sqlite") and (database := make_url(config.database).database):
            path = Path(f"{database}.lock").absolute()
            if path.parent != config.data:
                locks.enter_context(_locked(path, f"the database {database}; stop it first: {_OTHERS}"))
        if alone:
            tidy(config.blobs)
        yield


@contextlib.contextmanager
def _locked(path: Path, serves: str, *, several: bool = False) -> Iterator[IO[str]]:
    """Hold a lock on the file; `several` processes may hold it if they all say so."""
    with open(path, "a+") as file:
        if not lock_within(file.fileno(), LEFTOVER_S, shared=several):
            raise Conflict(f"another registry already serves {serves}")
        yield file


def _only_one(file: IO[str]) -> bool:
    """Whether no other process has this lock, which this process keeps in any case."""
    alone = lock_within(file.fileno(), 0.0)
    fcntl.flock(file, fcntl.LOCK_SH)
    return alone
