"""Hints for failures whose message does not say what to do: things that an operator's process lacks and other processes have."""

from __future__ import annotations

import errno
import os
import socket
import sys

# Errors of calls in a process that has no network but its own loopback.
_UNREACHED = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


def hint(chain: list[BaseException]) -> str:
    """A sentence to append to the message of the first of these exceptions, with a leading space; '' if there is nothing to add."""
    for e in chain:
        if isinstance(e, ModuleNotFoundError) and e.name and not _own(e.name):
            package = e.name.partition(".")[0]
            return (
                f" (an operator sees its own packages only, not those of Spark or of this machine: add the package of {package!r} to "
                "requirements in operator.toml)"
            )
        if isinstance(e, OSError) and (isinstance(e, socket.gaierror) or e.errno in _UNREACHED) and _connects(e) and _isolated():
            return " (the node's sandbox gives operators no network: docs/sandbox.md)"
    return ""


def _own(module: str) -> bool:
    """Whether the module's package has been imported: then a part of it is misspelt, and no package is missing."""
    return module.partition(".")[0] in sys.modules


def _connects(e: OSError) -> bool:
    """Whether the error is from a connection: errors about files name the file."""
    return e.filename is None


def _isolated() -> bool:
    return os.name == "posix" and {name for _, name in socket.if_nameindex()} <= {"lo"}
