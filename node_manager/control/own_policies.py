"""The node's own policies: a file of names in the form of elasticity/policies.toml, with the modules that it names beside it."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticity import policies
from udo_protocol.errors import UsageError


def read(path: Path | None) -> policies.Names:
    """Read the names in that file, and append its folder to sys.path, so that modules in it can be imported. None: no names.

    UsageError or NotFound at once, if the file or one of its functions cannot be read: the person who starts the node then sees it.
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
