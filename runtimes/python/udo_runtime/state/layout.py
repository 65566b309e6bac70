"""The columns of a state whose types are declared and have a fixed width: converts a state (a dict) to values of columns, and back. No I/O.

A column's values have the memory layout of the data buffer of an Arrow array of its type. A state that has other entries, or values of
other types, has no columns, and is kept as a row.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.formats.schema import parse_type, type_text
from udo_protocol.formats.state_types import StateTypes, fits

# A column of some keys in Python: numbers, and None for a state that lacks the entry.
Cells = Sequence[Any]
_US = dt.timedelta(microseconds=1)
# The range of Python's times: the years 1 to 9999, µs since 1970.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
# Arrow's types of a fixed width -> the array module's.
_CODES = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "double": "d", "float": "d", "bool": "B",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """The column of one entry. `code`: a type code of the array module. `arrow`: the type of the values in memory, viewed as `declared`.

    `given`: the Python type of a value; `number` and `value` convert between a value and its form in memory.
    """

    name: str
    declared: pa.DataType
    code: str
    arrow: pa.DataType
    given: type
    fits: Callable[[Any], bool]
    number: Callable[[Any], Any] | None = None
    value: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, name: str, declared: pa.DataType) -> Column | None:
        """The column for a declared type; None for a type that is kept in rows."""
        if pa.types.is_timestamp(declared) and declared.unit == "us":
            zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if declared.tz else None)
            return cls(
                name,
                declared,
                "q",
                pa.int64(),
                dt.datetime,
                fits(declared),
                lambda value: (value - zero) // _US,
                lambda number: zero + dt.timedelta(microseconds=number),
            )
        code = _CODES.get(str(declared))
        if code is None:
            return None
        if pa.types.is_boolean(declared):
            return cls(name, declared, code, pa.uint8(), bool, fits(declared), int, bool)
        if pa.types.is_floating(declared):  # floating-point numbers in a state are doubles, whatever is declared
            return cls(name, pa.float64(), code, pa.float64(), float, fits(declared))
        return cls(name, declared, code, declared, int, fits(declared))

    def cells(self, values: Iterable[Any]) -> list[Any]:
        """Values, some of which may be None, in their form in memory."""
        number = self.number
        return list(values) if number is None else [None if value is None else number(value) for value in values]

    def values(self, cells: Cells) -> Sequence[Any]:
        """Inverse of `cells`."""
        made = self.value
        return cells if made is None else [None if cell is None else made(cell) for cell in cells]

    def array(self, cells: Cells) -> pa.Array:
        """The cells as an Arrow array of the declared type."""
        kept = pa.array(cells, self.arrow)
        return kept if self.arrow == self.declared else kept.cast(self.declared)

    def of_array(self, values: pa.Array) -> list[Any] | None:
        """Inverse of `array`; None for an array of another type, or with values out of the type's range."""
        if values.type != self.declared:
            if self.given is not int or not pa.types.is_integer(values.type):
                return None
            try:
                values = values.cast(self.declared)
            except pa.ArrowInvalid:
                return None
        if self.value is not None and pa.types.is_timestamp(self.declared):
            found = pc.min_max(values.cast(self.arrow)).as_py()
            if found["min"] is not None and not _FIRST_US <= found["min"] <= found["max"] <= _LAST_US:
                return None
        if self.arrow != self.declared:
            values = values.cast(self.arrow)
        return values.to_pylist()  # type: ignore[no-any-return]


class Layout:
    """The columns of a state, in the order of the manifest."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.names = {c.name: at for at, c in enumerate(columns)}

    @classmethod
    def of(cls, types: StateTypes | None) -> Layout | None:
        """The layout for declared types; None unless every entry has a type that is kept in a column."""
        if types is None:
            return None
        columns = [Column.of(name, declared) for name, declared in types.columns.items()]
        return cls([c for c in columns if c is not None]) if columns and None not in columns else None

    @classmethod
    def stored(cls, described: Iterable[tuple[str, str]]) -> Layout:
        """The layout with the names and types of a stored form."""
        columns = [Column.of(name, parse_type(text)) for name, text in described]
        return cls([c for c in columns if c is not None])

    def described(self) -> list[tuple[str, str]]:
        """Inverse of `stored`: the names and types."""
        return [(c.name, type_text(c.declared)) for c in self.columns]

    def row(self, state: Mapping[str, Any]) -> list[Any] | None:
        """A state as cells of the columns; None if it has no columns."""
        names = self.names
        cells: list[Any] = [None] * len(names)
        for name, value in state.items():
            at = names.get(name)
            if at is None or value is None:
                return None
            column = self.columns[at]
            if type(value) is not column.given or not column.fits(value):
                return None
            cells[at] = value if column.number is None else column.number(value)
        return cells

    def states(self, cells: Sequence[Cells], count: int) -> list[dict[str, Any]]:
        """The states of `count` keys from their columns."""
        states: list[dict[str, Any]] = [{} for _ in range(count)]
        for column, some in zip(self.columns, cells, strict=True):
            name = column.name
            for state, value in zip(states, column.values(some), strict=True):
                if value is not None:
                    state[name] = value
        return states


def whole(cells: Cells) -> bool:
    """Whether all cells have a value."""
    return isinstance(cells, array) or None not in cells


def compact(column: Column, cells: Cells) -> Cells:
    """The same cells as an array, without a Python object each, if all of them have a value."""
    return array(column.code, cells) if whole(cells) else cells
