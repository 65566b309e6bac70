"""Remembers that there is no `dateutil`, for as long as it is looked for in the same places.

Arrow looks for it whenever it finds out the type of Python values (`pa.array([1])`, `pc.greater(column, 5.0)`), and a search of the
whole path costs as much as the values of a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "dateutil"


class Absent:
    """A finder of `dateutil` that knows where it has been looked for in vain."""

    def __init__(self) -> None:
        self._searched: tuple[Any, ...] | None = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None, for the other finders to find it and all else. ModuleNotFoundError if none of them does."""
        if name != _NAME:
            return None
        if (places := (*sys.meta_path, *sys.path)) != self._searched:
            if any(finder.find_spec(name, None) for finder in sys.meta_path if finder is not self):
                return None
            self._searched = places
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def remember() -> None:
    """Keep the outcome of looking for it, in this process."""
    if not any(isinstance(finder, Absent) for finder in sys.meta_path):
        sys.meta_path.insert(0, Absent())
