"""What an operator's author can do about a failure whose own message does not say it: what its process lacks and others have."""

from __future__ import annotations

import errno
import os
import socket
import sys

# What calls of a process that has no network but its own loopback end with.
_UNREACHED = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


def hint(chain: list[BaseException]) -> str:
    """A sentence to be put behind the message of the first of these, with a blank before it; '' if there is nothing to add."""
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
    """Whether it belongs to something that is there: a misspelt part of it, no missing package."""
    return module.partition(".")[0] in sys.modules


def _connects(e: OSError) -> bool:
    """A file that may not be read has a name; what was connected to has none."""
    return e.filename is None


def _isolated() -> bool:
    return os.name == "posix" and {name for _, name in socket.if_nameindex()} <= {"lo"}
