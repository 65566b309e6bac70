"""The folders of a registry process, and the processes that may share them. Locked before anything is opened or served.

DATA belongs to one process: its address and port, and SQLite's file. SHARED, by default the same folder, holds the images and the token:
all processes of one PostgreSQL database share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sqlalchemy import make_url

from registry.config import RegistrySettings
from registry.content.uploads import tidy
from registry.store.postgresql import is_postgresql
from udo_protocol.errors import Conflict

# The worker of a killed registry notices within one second that its master is gone, and ends an upload under way within five; until
# then it may still commit.
LEFTOVER_S = 8.0
_LOOK_S = 0.05
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
    kind = fcntl.LOCK_SH if several else fcntl.LOCK_EX
    with open(path, "a+") as file:
        deadline = time.monotonic() + LEFTOVER_S
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Conflict(f"another registry already serves {serves}") from None
                time.sleep(_LOOK_S)
        yield file


def _only_one(file: IO[str]) -> bool:
    """Whether no other process has this lock, which this process keeps in any case."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_SH)
        return False
    fcntl.flock(file, fcntl.LOCK_SH)
    return True
