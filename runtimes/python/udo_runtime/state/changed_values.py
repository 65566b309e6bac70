"""The values of a key group that changed since the last checkpoint: by key, and for columns by key and row. No I/O."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from itertools import chain
from typing import Any

from udo_runtime.state.codec import Delta
from udo_runtime.state.columns import ColumnValues
from udo_runtime.state.stored_values import packed_rows, version_of
from udo_runtime.state.versions import Versions


class ChangedValues:
    """The changed values. Values in `by_key` may be older than rows that were marked later."""

    __slots__ = ("_marks", "by_key")

    def __init__(self) -> None:
        self.by_key: Delta = {}  # None: removed
        self._marks: list[tuple[Sequence[Any], list[int | None]]] = []

    def __bool__(self) -> bool:
        return bool(self.by_key or self._marks)

    def mark(self, keys: Sequence[Any], rows: list[int | None]) -> None:
        """Note that columns of these keys changed, in these rows."""
        self._marks.append((keys, rows))

    def clear(self) -> None:
        """Forget the changes, which are durable now."""
        self.by_key.clear()
        self._marks = []

    def now(self, values: MutableMapping[Any, bytes]) -> Delta:
        """All changes by key, from the current values."""
        if self._marks:
            self.by_key = {k: values.get(k) for k in chain(self.by_key, *(keys for keys, _ in self._marks))}
            self._marks = []
        return self.by_key

    def stored(self, versions: Versions | None, values: MutableMapping[Any, bytes]) -> bytes:
        """The changes in stored form, as rows or columns like the values."""
        if not self._marks or not isinstance(values, ColumnValues):
            return packed_rows(versions, self.by_key)
        by_key = [(list(self.by_key), [None])] if self.by_key else []
        return values.changes(version_of(versions), [*by_key, *self._marks])
