"""The values of a key group as columns: a row per key, so that a key costs no dict and no packed state. No I/O.

For the group this is an ordinary mapping from key to packed state, so that its rules need not know of columns. Whole frames bypass the
mapping with `find`, `read` and `write`. A state for which the layout has no columns is kept packed in `others`, and so are timers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping, Sequence, ValuesView
from itertools import chain
from typing import Any

from udo_runtime.state.codec import TIMERS, Delta, findable, pack, pack_large, unpack, unpack_tuples
from udo_runtime.state.layout import Cells, Layout, compact, whole

# The first byte of values stored as columns, with which no MessagePack begins.
COLUMNS = 0xC1
# Distinct keys, and the columns of their states at some time; None in all columns: no state.
Block = tuple[Sequence[Any], Sequence[Cells]]


class ColumnValues(MutableMapping[Any, bytes]):
    """A mapping from key to packed state, kept as columns."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.others: dict[Any, bytes] = {}
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        self._columns = [array(c.code) for c in layout.columns]
        self._given = [bytearray() for _ in layout.columns]  # for each row 1, or 0 if the state lacks the entry
        self._missing = [0] * len(layout.columns)  # number of rows in use whose state lacks the entry
        self._row_bytes = sum(c.itemsize for c in self._columns)
        self._bytes = 0  # bytes of keys, and of `others`
        self.removed = False  # whether a row has become free, and may have been reused for another key

    # -- frames ------------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[Any]) -> list[int | None] | None:
        """The rows of keys; None for a key without state. Returns None if one of the keys is among `others`."""
        if self.others and not self.others.keys().isdisjoint(keys):
            return None
        return list(map(self._rows.get, keys))

    def read(self, rows: Sequence[int | None]) -> list[list[Any]]:
        """The columns of these rows."""
        if None not in rows and not any(self._missing):
            return [list(map(column.__getitem__, rows)) for column in self._columns]  # type: ignore[arg-type]
        return [
            [None if row is None or not given[row] else column[row] for row in rows]
            for column, given in zip(self._columns, self._given, strict=True)
        ]

    def write(self, keys: Sequence[Any], rows: list[int | None], cells: Sequence[Cells | None]) -> None:
        """Set columns of keys with these rows (from `find`); None: the column is not changed. Fills in `rows` of new keys."""
        if None not in rows and not any(self._missing) and all(c is None or whole(c) for c in cells):
            for column, new in zip(self._columns, cells, strict=True):
                if new is not None:
                    for row, cell in zip(rows, new, strict=True):
                        column[row] = cell  # type: ignore[index]
            return
        for at, (key, row) in enumerate(zip(keys, rows, strict=True)):
            was = [None] * len(cells) if row is None else self._row(row)
            rows[at] = self._set(key, row, [old if new is None else new[at] for old, new in zip(was, cells, strict=True)])

    def put(self, block: Block) -> None:
        """Set the states of keys, none of which is among `others`."""
        keys, cells = block
        self.write(keys, list(map(self._rows.get, keys)), cells)

    def _row(self, row: int) -> list[Any]:
        return [column[row] if given[row] else None for column, given in zip(self._columns, self._given, strict=True)]

    def _set(self, key: Any, row: int | None, cells: Sequence[Any]) -> int | None:
        """Set all columns of a key; returns its row from now on."""
        if cells.count(None) == len(cells):
            if row is not None:
                del self[key]
            return None
        if row is None:
            row = self._new(key)
        for at, cell in enumerate(cells):
            given = self._given[at]
            self._missing[at] += (cell is None) - (not given[row])
            given[row] = cell is not None
            self._columns[at][row] = 0 if cell is None else cell
        return row

    def _new(self, key: Any) -> int:
        """A new row, without entries, for a key that has none."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._rows)
            for column, given in zip(self._columns, self._given, strict=True):
                column.append(0)
                given.append(0)
        self._rows[key] = row
        self._bytes += len(pack(key))
        for at in range(len(self._missing)):
            self._missing[at] += 1
        return row

    # -- a mapping ---------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> bytes:
        row = self._rows.get(key)
        if row is None:
            return self.others[key]
        [packed] = packed_states(self.layout, [[cell] for cell in self._row(row)], 1)
        assert packed is not None, "a row has a state"
        return packed

    def __setitem__(self, key: Any, packed: bytes) -> None:
        cells = None if key == TIMERS else self.layout.row(unpack(packed))
        if cells is None:
            self.pop(key, None)
            self.others[key] = packed
            self._bytes += len(pack(key)) + len(packed)
            return
        if key in self.others:
            del self[key]
        self._set(key, self._rows.get(key), cells)

    def __delitem__(self, key: Any) -> None:
        row = self._rows.pop(key, None)
        if row is None:
            self._bytes -= len(pack(key)) + len(self.others.pop(key))
            return
        self._bytes -= len(pack(key))
        for at, given in enumerate(self._given):
            self._missing[at] -= not given[row]
            given[row] = 0
        self._free.append(row)
        self.removed = True

    def __iter__(self) -> Iterator[Any]:
        return chain(self._rows, self.others)

    def values(self) -> ValuesView[bytes]:
        """The packed states of all keys, packed at once: one after the other takes several times as long."""
        packed = packed_states(self.layout, self.read(list(self._rows.values())), len(self._rows))
        return {**dict(zip(self._rows, packed, strict=True)), **self.others}.values()

    def __len__(self) -> int:
        return len(self._rows) + len(self.others)

    def __contains__(self, key: object) -> bool:
        return key in self._rows or key in self.others

    @property
    def size(self) -> int:
        """Bytes of keys and states; a state counts with its size in the columns."""
        return len(self._rows) * self._row_bytes + self._bytes

    # -- stored form -------------------------------------------------------------------------------------------------

    def delta(self, version: int, keys: Sequence[Any]) -> bytes:
        """The states of these keys in stored form; keys without a state were removed."""
        rows = list(map(self._rows.get, keys))
        others: Delta = {}
        if None in rows:
            others = {key: self.others.get(key) for key, row in zip(keys, rows, strict=True) if row is None}
            keys, rows = [k for k in keys if k not in others], [row for row in rows if row is not None]
        return stored_columns(version, self.layout, others, (keys, self.read(rows)))

    def changes(self, version: int, marks: Sequence[tuple[Sequence[Any], Sequence[int | None]]]) -> bytes:
        """Like `delta`, for keys with the rows that they had when they were marked; keys may come more than once."""
        if self.removed or any(None in rows for _, rows in marks):
            return self.delta(version, list(dict.fromkeys(chain.from_iterable(keys for keys, _ in marks))))
        by_row: dict[Any, Any] = {}
        for keys, rows in marks:
            by_row.update(zip(rows, keys, strict=True))
        return stored_columns(version, self.layout, {}, (list(by_row.values()), self.read(list(by_row))))

    def snapshot(self, version: int) -> bytes:
        """All states in stored form."""
        return self.delta(version, list(self))

    def lay(self, packed: bytes) -> bool:
        """Apply a stored base or change of the same layout; False if its layout is another one."""
        layout, others, block = read_columns(packed, self.layout)
        if layout is not self.layout:
            return False
        for key in [key for key in block[0] if key in self.others] if self.others else ():
            del self[key]
        self.put(block)
        for key, value in others.items():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value
        return True


def packed_states(layout: Layout, cells: Sequence[Cells], count: int) -> list[bytes | None]:
    """The states of `count` keys from their columns, packed; None: no state."""
    return [pack(state) if state else None for state in layout.states(cells, count)]


def stored_columns(version: int, layout: Layout, others: Delta, block: Block) -> bytes:
    """The stored form of values as columns: the byte COLUMNS, the state version, then in MessagePack [keys of others, values of others,
    keys, names and types of the columns, for each column its data buffer and, by key, whether it has a value (nil: all have)]."""
    keys, columns = block
    stored: list[list[Any]] = []
    for column, cells in zip(layout.columns, columns, strict=True):
        complete = whole(cells)
        data = cells if complete else [0 if cell is None else cell for cell in cells]
        stored.append(
            [
                (data if isinstance(data, array) else array(column.code, data)).tobytes(),
                None if complete else bytes(cell is not None for cell in cells),
            ]
        )
    return bytes((COLUMNS, version)) + pack_large([list(others), list(others.values()), list(keys), layout.described(), stored])


def read_columns(packed: bytes, known: Layout | None = None) -> tuple[Layout, Delta, Block]:
    """Inverse of `stored_columns`: layout, others, block; the layout is `known` if that has the same columns."""
    names, values, keys, described, stored = unpack_tuples(memoryview(packed)[2:])
    names, keys = findable(names), findable(keys)
    layout = known if known is not None and list(described) == known.described() else Layout.stored(described)
    columns: list[Cells] = []
    for column, (data, given) in zip(layout.columns, stored, strict=True):
        cells: Cells = array(column.code, data)
        if given is not None:
            cells = [cell if there else None for cell, there in zip(cells, given, strict=True)]
        columns.append(cells)
    return layout, dict(zip(names, values, strict=True)), (keys, columns)


def rows_of(packed: bytes) -> Delta:
    """Values stored as columns, by key: key -> packed state, None: removed. The last state of a repeated key counts."""
    layout, others, (keys, columns) = read_columns(packed)
    return {**dict(zip(keys, packed_states(layout, columns, len(keys)), strict=True)), **others}


def joined(blocks: Sequence[Block], layout: Layout) -> Block:
    """Several blocks as one, in which a key may come more than once; its earliest state comes last."""
    keys: list[Any] = []
    columns: list[Any] = [array(c.code) if all(whole(cells[at]) for _, cells in blocks) else [] for at, c in enumerate(layout.columns)]
    for some, cells in reversed(blocks):
        keys += some
        for column, of_block in zip(columns, cells, strict=True):
            column.extend(of_block)
    return keys, columns


def first_of(blocks: Sequence[Block], layout: Layout) -> Block:
    """The first states of each key of several blocks, as one block."""
    seen: set[Any] = set()
    keys: list[Any] = []
    columns: list[list[Any]] = [[] for _ in layout.columns]
    for some, cells in blocks:
        rows = [row for row, key in enumerate(some) if key not in seen]
        seen.update(some)
        keys += [some[row] for row in rows]
        for column, of_block in zip(columns, cells, strict=True):
            column += [of_block[row] for row in rows]
    return keys, [compact(c, cells) for c, cells in zip(layout.columns, columns, strict=True)]
