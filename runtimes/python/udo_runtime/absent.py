"""Remembers that there is no `dateutil`, for as long as the module path is the same.

Arrow looks for it whenever it finds out the type of Python values (`pa.array([1])`, `pc.greater(column, 5.0)`), and a search of the
whole path costs as much as the values of a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_NAME = "dateutil"


class Absent:
    """A finder of `dateutil` that knows where it has been looked for in vain."""

    def __init__(self) -> None:
        self._searched: tuple[str, ...] | None = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec; None for other modules. ModuleNotFoundError if it is nowhere on the path."""
        if name != _NAME:
            return None
        if (there := tuple(sys.path)) != self._searched:
            if found := PathFinder.find_spec(name):
                return found
            self._searched = there
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def remember() -> None:
    """Keep the outcome of looking for it, in this process."""
    if not any(isinstance(finder, Absent) for finder in sys.meta_path):
        sys.meta_path.insert(0, Absent())
