"""The keys that a request touches: their packed states as a table, and the changes in the reply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import ProtocolError
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.packed import apart, may_expire, require, together
from udo_runtime.child.wire import KEYS, STATES, TIMES, Received
from udo_runtime.execution.timers import KeyedContext
from udo_runtime.state.codec import pack, unpack
from udo_runtime.state.groups import Group

# The range of Python's times, which timers become after an update to an operator in Python: the years 1 to 9999, µs since 1970.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


class Changes(NamedTuple):
    """The changes in a reply: (row of KEYS, new state or None, when it expires), and timers (row of KEYS, µs since 1970)."""

    states: list[tuple[int, bytes | None, int | None]]
    timers: list[tuple[int, int]]


@dataclass(frozen=True)
class StoredKeys:
    """The touched keys: their values, the numbers of their groups, their stored states."""

    values: list[Any]
    numbers: list[int]
    stored: list[bytes | None]

    @classmethod
    def of(cls, groups: Mapping[int, Group], values: list[Any], numbers: list[int]) -> StoredKeys:
        """These keys with their stored states; their groups were touched before, and no key is open. `groups`: those of the session."""
        get = {n: groups[n].values.get for n in set(numbers)}
        return cls(values, numbers, [get[n](value) for value, n in zip(values, numbers, strict=True)])

    def table(self) -> pa.RecordBatch:
        """The keys as a table of schema KEYS."""
        states = pa.array(self.stored, pa.binary())
        expires = pa.nulls(len(self.stored), pa.int64())
        if states.null_count < len(states) and may_expire(bytes(states.buffers()[2])):
            parts = list(map(apart, self.stored))
            states, expires = (pa.array(column, t) for column, t in zip(zip(*parts, strict=True), KEYS.types[1:], strict=True))
        return pa.RecordBatch.from_arrays([pa.array(list(map(pack, self.values)), pa.binary()), states, expires], schema=KEYS)

    def change(self, ctx: KeyedContext, found: Changes) -> None:
        """Apply the changes."""
        groups, values, numbers = ctx._groups, self.values, self.numbers
        changed: defaultdict[int, dict[Any, bytes | None]] = defaultdict(dict)
        for row, state, expires_us in found.states:
            value, number = values[row], numbers[row]
            if expires_us is not None:
                if apart(self.stored[row])[1] != expires_us:
                    ctx._set_expiration(number, pack(value), expires_us)
                state = together(state, expires_us)
            changed[number][value] = state
        for number, states in changed.items():
            groups[number].replace(states)
        for row, at_us in found.timers:
            ctx._set_timer(numbers[row], pack(values[row]), at_us)

    def expire(self, ctx: KeyedContext, at_us: int) -> None:
        """Drop the states that expire at `at_us`; the others have since been given another time."""
        for value, number, stored in zip(self.values, self.numbers, self.stored, strict=True):
            if apart(stored)[1] == at_us:
                ctx._groups[number].replace({value: None})


def changes(reply: Received, keys: int) -> Changes:
    """The changes in the reply, validated in full. ProtocolError if a table is invalid."""
    states: list[tuple[int, bytes | None, int | None]] = []
    timers: list[tuple[int, int]] = []
    if (table := reply.table(pb.Part.STATES, STATES)) is not None:
        _require_rows(table.column(0), keys)
        _require_times(table.column(2))
        packed = table.column(1).to_pylist()
        if not require(packed if None not in packed else [p for p in packed if p is not None]):
            packed = [p if p and unpack(p) else None for p in packed]
        states = list(zip(table.column(0).to_pylist(), packed, table.column(2).to_pylist(), strict=True))
    if (table := reply.table(pb.Part.SET, TIMES)) is not None:
        _require_rows(table.column(0), keys)
        _require_times(table.column(1))
        if table.column(1).null_count:
            raise ProtocolError("a timer without a time")
        timers = list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
    return Changes(states, timers)


def _require_rows(column: pa.Array, keys: int) -> None:
    lowest, highest = _bounds(column)
    if len(column) and (column.null_count or not 0 <= lowest <= highest < keys):
        raise ProtocolError(f"a key that is none of the {keys} it was given")


def _require_times(column: pa.Array) -> None:
    lowest, highest = _bounds(column)
    for us in (lowest, highest):
        if not _FIRST_US <= us <= _LAST_US:
            raise ProtocolError(f"a time of {us} µs since 1970, beyond the years 1 to 9999")


def _bounds(column: pa.Array) -> tuple[int, int]:
    """The lowest and the highest value; (0, 0) if there are none."""
    found = pc.min_max(column).as_py()
    return (0, 0) if found["min"] is None else (found["min"], found["max"])
