"""Keyed frames for a vectorised operator whose states are columns, which are passed to it and back without a dict for each key.

A frame's keys are ordered by their groups, so that each group reads and writes a slice of each column. As soon as the operator
asks for a state as a dict, or if a state has no columns, all states of the frame become dicts, which are packed after the call.
Changed states are stored after the call; a frame that fails has changed none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.formats.body import validated
from udo_runtime.execution.distinct_keys import distinct
from udo_runtime.execution.keyed_batches import NO_GROUP, Call, KeyedBatchProcessor
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.timers import KeyedContext
from udo_runtime.failure import ProcessingError, explained
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates
from udo_runtime.state.codec import EMPTY, TIMERS, pack_each, unpack_all
from udo_runtime.state.columns import ColumnValues
from udo_runtime.state.groups import Group
from udo_runtime.state.layout import Cells, Column, Layout, compact, whole
from udo_runtime.state.session import Session
from udo_runtime.state.snapshot import Snapshot, Timed


class _Part(NamedTuple):
    """The keys of one group: numbers `first` up to, not including, `last`, and their rows; None if some keys have no columns."""

    group: Group
    number: int
    first: int
    last: int
    keys: list[Any]
    rows: list[int | None] | None


class KeyedColumnProcessor(KeyedBatchProcessor):
    """Runs a vectorised operator over keyed frames with states in columns."""

    def __init__(self, target: Operator, keyed: KeyedConfig, output: pa.Schema, ctx: Context, call: Call, layout: Layout) -> None:
        super().__init__(target, keyed, output, ctx, call)
        self._layout = layout

    def _plain(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        """The answer to these events; if they fail, nothing is changed except timers."""
        try:
            columns = self._key_columns(batch)
            validated(batch)  # also its text, which was not checked before: no operator may get invalid UTF-8
            index, values, groups = _by_group(columns, numbers)
            states = ColumnStates(self._layout, _parts(session, values, groups), len(values))
        except ProcessingError:
            raise
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise ProcessingError(explained(e)) from e
        ctx = self._ctx
        ctx._at(None, NO_GROUP, {})

        def select(number: int) -> KeyedContext:
            ctx._at(values[number], groups[number].as_py(), _StateOf(states, number))
            return ctx

        answer = self._call(FrameKeys(values, index, select), batch, states, ctx)
        try:
            states.store()
        except (TypeError, ValueError, OverflowError) as e:  # an unsupported type, invalid Unicode, a number beyond 64 bits
            raise ProcessingError(str(e)) from e
        return self._nothing if self.on_trial else answer

    def _undoable(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array, journal: list[Timed]) -> pa.RecordBatch:
        timers = Snapshot(session.groups, journal, [])
        try:
            return self._plain(session, batch, numbers)
        except ProcessingError:
            timers.restore()
            raise


class _StateOf:
    """A key's state while only timers are set; it becomes a dict at the first access."""

    def __init__(self, states: ColumnStates, number: int) -> None:
        self._states, self._number = states, number

    def get(self, name: str) -> Any:
        """The value of one entry."""
        return self._states[self._number].get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._states[self._number][name] = value


class ColumnStates(FrameStates):
    """The states of a frame's keys, ordered by their groups, `parts`."""

    def __init__(self, layout: Layout, parts: Sequence[_Part], count: int) -> None:
        super().__init__(())
        self._layout, self._parts, self._count = layout, parts, count
        self._dicts: list[dict[str, Any]] | None = None
        self._given: list[list[Any] | None] = [None] * len(layout.columns)  # columns that the operator has put
        self._kept: list[list[Any]] = [[] for _ in layout.columns]  # columns before the call
        if any(p.rows is None for p in parts):
            self._states = self._opened()
            return
        for part in parts:
            for kept, cells in zip(self._kept, part.group.values.read(part.rows), strict=True):  # type: ignore[attr-defined]
                kept += cells

    @property
    def _states(self) -> list[dict[str, Any]]:
        """The states, which are dicts from now on."""
        if self._dicts is None:
            now: list[Cells] = [kept if new is None else new for kept, new in zip(self._kept, self._given, strict=True)]
            self._dicts = self._layout.states(now, self._count)
        return self._dicts

    @_states.setter
    def _states(self, states: Sequence[dict[str, Any]]) -> None:
        self._dicts = list(states) or None

    def _opened(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = []
        for part in self._parts:
            packed = list(map(part.group.values.get, part.keys))
            states += unpack_all([p or EMPTY for p in packed], len(packed))
        return states

    def opened(self) -> Sequence[dict[str, Any]]:
        """The states that are dicts, whose types have to be checked; columns have their types."""
        return self._dicts or ()

    def column(self, name: str, arrow_type: pa.DataType, default: Any = None) -> pa.Array:
        """One entry of all these states as an Arrow array, with `default` for states without it."""
        at = self._layout.names.get(name)
        if at is None or self._dicts is not None:
            return super().column(name, arrow_type, default)
        column, new = self._layout.columns[at], self._given[at]
        cells: Cells = self._kept[at] if new is None else new
        if whole(cells) or default is None:
            made = column.array(cells)
            if made.type == arrow_type:
                return made
        return pa.array([default if value is None else value for value in column.values(cells)], arrow_type)

    def put(self, name: str, values: pa.Array | pa.ChunkedArray | Sequence[Any]) -> None:
        """Set one entry of all these states, in the order of the keys; null, or None, removes it."""
        at = self._layout.names.get(name)
        if self._dicts is None and at is not None and len(values) == self._count:
            column = self._layout.columns[at]
            cells = column.of_array(_one(values)) if isinstance(values, (pa.Array, pa.ChunkedArray)) else _of_list(column, values)
            if cells is not None:
                self._given[at] = cells
                return
        super().put(name, values)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._states)

    def store(self) -> None:
        """Store the states. TypeError, ValueError or OverflowError if one cannot be stored; then none is."""
        if self._dicts is not None:
            self._store_dicts(self._dicts)
        elif any(new is not None for new in self._given):
            for part in self._parts:
                assert part.rows is not None
                old = [compact(c, kept[part.first : part.last]) for c, kept in zip(self._layout.columns, self._kept, strict=True)]
                new = [None if given is None else given[part.first : part.last] for given in self._given]
                part.group.write(part.keys, part.rows, old, new)

    def _store_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        keys = [key for part in self._parts for key in part.keys]
        packed = [None if p == EMPTY else p for p in pack_each(keys, states)]
        for part in self._parts:
            part.group.replace(dict(zip(part.keys, packed[part.first : part.last], strict=True)))


def _one(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _of_list(column: Column, values: Sequence[Any]) -> list[Any] | None:
    """Python's values in the form of the column; None if one of them is of another type, or out of the type's range."""
    if set(map(type, values)) - {column.given, type(None)} or not all(value is None or column.fits(value) for value in values):
        return None
    return column.cells(values)


def _by_group(columns: Sequence[pa.Array], numbers: pa.Array) -> tuple[pa.Array, list[Any], pa.Array]:
    """(the number of each row's key, each key's value, each key's group); keys of one group are adjacent."""
    index, values, first = distinct(columns)
    groups = numbers.take(first)
    order = pc.sort_indices(groups)
    places = pc.sort_indices(order).cast(pa.int32())  # places of the keys in that order
    return places.take(index), list(map(values.__getitem__, order.to_pylist())), groups.take(order)


def _parts(session: Session, keys: list[Any], numbers: pa.Array) -> list[_Part]:
    """The keys by group; open keys of these groups are closed."""
    parts: list[_Part] = []
    first = 0
    for run in numbers.value_counts().to_pylist():  # in order of first occurrence
        number, last = run["values"], first + run["counts"]
        group, of_group = session.groups[number], keys[first:last]
        if len(group.live) > (TIMERS in group.live):
            group.pack(close=True)
        values = group.values
        rows = values.find(of_group) if isinstance(values, ColumnValues) else None
        parts.append(_Part(group, number, first, last, of_group, rows))
        first = last
    return parts
