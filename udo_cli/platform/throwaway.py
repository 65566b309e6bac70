"""A platform for the duration of one command, in a folder of its own. Whatever happens, no process and no file is left afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from udo_cli.home import Home
from udo_cli.options.daemons import UpOptions
from udo_cli.platform import local


@contextlib.contextmanager
def workspace(prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end, whenever Ctrl-C comes; its path is short, since sockets may lie in it."""
    made: tempfile.TemporaryDirectory[str] | None = None
    try:
        with local.undivided():
            made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        yield Path(made.name)
    finally:
        with local.undivided():
            if made is not None:
                made.cleanup()


@contextlib.contextmanager
def platform(home: Home, options: UpOptions, say: Callable[[str], None]) -> Iterator[local.StartedServices]:
    """A registry and a node manager under `home`."""
    try:
        yield local.start(home, options, say)
    finally:
        with local.unhurried():
            local.stop(home, say)
