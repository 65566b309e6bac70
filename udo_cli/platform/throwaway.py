"""A platform for the duration of one command, in a folder of its own. Whatever happens, no process and no file is left afterwards."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from udo_cli.options.daemons import UpOptions
from udo_cli.platform import local
from udo_cli.platform.home import Home


@contextlib.contextmanager
def workspace(prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end; its path is short, since sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def platform(home: Home, options: UpOptions, say: Callable[[str], None]) -> Iterator[local.StartedServices]:
    """A registry and a node manager under `home`."""
    try:
        yield local.start(home, options, say)
    finally:
        with local.unhurried():
            local.stop(home, say)
