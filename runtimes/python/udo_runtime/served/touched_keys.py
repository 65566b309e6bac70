"""The keys of one request for a Python operator: states as dicts, and a context that notes timers for the answer."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from udo_protocol.formats import body
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.wire import INDEX, KEYS, STATES, TIMES, Received
from udo_runtime.execution.timers import EPOCH, KeyedContext
from udo_runtime.sdk.api import Context
from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates
from udo_runtime.state.codec import EMPTY, EXPIRES, pack_each, unpack, unpack_key


class _Context(KeyedContext):
    """Notes timers by the key's row; the expiration is an entry of the state, as in the engine's process."""

    _set: list[tuple[int, int]]

    def _set_timer(self, number: int, packed: bytes, at_us: int) -> None:
        self._set.append((number, at_us))

    def _set_expiration(self, number: int, packed: bytes, at_us: int) -> None:
        pass


class TouchedKeys:
    """The keys of one request. `at(row)` makes a key the current one of the context."""

    def __init__(self, request: Received, ctx: Context, watermark_us: int | None) -> None:
        table = body.read(request.tables[pb.Part.KEYS], KEYS, None)
        self._keys, self._packed, self._expires = (column.to_pylist() for column in table.columns)
        self.states: list[dict[str, Any]] = [unpack(p) if p else {} for p in self._packed]
        for state, at_us in zip(self.states, self._expires, strict=True):
            if at_us is not None:
                state[EXPIRES] = at_us
        self.ctx = _Context(ctx.operator, ctx.version, ctx.instance, ctx.directory)
        self.ctx._watermark_us, self.ctx._set = watermark_us, []

    def at(self, row: int) -> None:
        """Make this key the current one of the context."""
        self.ctx._at(unpack_key(self._keys[row]), row, self.states[row])

    def index(self, request: Received) -> pa.Array:
        """The row of each event's key."""
        return body.read(request.tables[pb.Part.INDEX], INDEX, None).column(0)

    def frame(self, request: Received, batch: pa.RecordBatch) -> tuple[FrameKeys, pa.RecordBatch, FrameStates]:
        """The arguments of a vectorised operator."""

        def select(row: int) -> KeyedContext:
            self.at(row)
            return self.ctx

        self.ctx._at(None, -1, {})
        return FrameKeys(list(map(unpack_key, self._keys)), self.index(request), select), batch, FrameStates(self.states)

    def due(self, request: Received) -> list[tuple[int, dt.datetime]]:
        """(row of the key, time) of each timer that is due."""
        keys, times = (column.to_pylist() for column in body.read(request.tables[pb.Part.DUE], TIMES, None).columns)
        return [(key, EPOCH + dt.timedelta(microseconds=at)) for key, at in zip(keys, times, strict=True)]

    def changes(self, *, everything: bool = False) -> list[tuple[int, pa.RecordBatch]]:
        """The tables STATES and SET for the answer. `everything`: including unchanged states."""
        rows, states, expires = list[int](), list[bytes | None](), list[int | None]()
        expirations = [state.pop(EXPIRES, None) for state in self.states]
        every = pack_each(map(unpack_key, self._keys), self.states)
        for row, (value, at_us) in enumerate(zip(every, expirations, strict=True)):
            packed = None if value == EMPTY else value
            if everything or packed != self._packed[row] or at_us != self._expires[row]:
                rows.append(row)
                states.append(packed)
                expires.append(at_us)
        tables: list[tuple[int, pa.RecordBatch]] = [
            (pb.Part.STATES, pa.RecordBatch.from_pydict({"key": rows, "state": states, "expires_us": expires}, schema=STATES))
        ]
        if self.ctx._set:
            keys, times = zip(*self.ctx._set, strict=True)
            tables.append((pb.Part.SET, pa.RecordBatch.from_pydict({"key": keys, "at_us": times}, schema=TIMES)))
        return tables
