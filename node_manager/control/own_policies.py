"""Policies of a node's own: a file of names in the form of elasticity/policies.toml, with the modules that it names beside it."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticity import policies
from udo_protocol.errors import UsageError


def read(path: Path | None) -> policies.Names:
    """The names in that file; from now on modules that lie beside it can be imported, behind all others. None: no names.

    UsageError, NotFound at once, if the file or one of its functions cannot be read: whoever starts the node is there to see it.
    """
    if path is None:
        return {}
    try:
        names = policies.read(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"the file of policies cannot be read: {e}") from e
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.append(folder)
    for kind, entries in names.items():
        for name in entries:
            policies.find(kind, name, names)
    return names
