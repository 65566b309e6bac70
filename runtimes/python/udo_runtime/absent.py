"""Remembers that there is no `dateutil`, until the places to look for it change.

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
    """A finder of `dateutil` that remembers where it was not found."""

    def __init__(self) -> None:
        self._searched: tuple[Any, ...] | None = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None, so that the other finders look for the module. ModuleNotFoundError if none of them finds `dateutil`."""
        if name != _NAME:
            return None
        if (places := (*sys.meta_path, *sys.path)) != self._searched:
            if any(finder.find_spec(name, None) for finder in sys.meta_path if finder is not self):
                return None
            self._searched = places
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def remember() -> None:
    """Remember in this process whether there is a `dateutil`."""
    if not any(isinstance(finder, Absent) for finder in sys.meta_path):
        sys.meta_path.insert(0, Absent())
