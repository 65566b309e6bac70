"""Keyed frames for an operator in a process of its own: the touched keys' states go with the events, and come back with the answer.

Nothing of a session stays in that process. Labels, undo, timers, expirations and checkpoints are those of any keyed operator; what
differs is that a frame is one call, not one for each event.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.body import validated
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.host import Child, Failed
from udo_runtime.child.processor import name
from udo_runtime.child.wire import INDEX, KEYS, STATES, TIMES, Received
from udo_runtime.execution.bad_events import BadEvent, empty
from udo_runtime.execution.failure import ProcessingError, event_text, explained
from udo_runtime.execution.keyed import KeyedProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.timers import EPOCH, KeyedContext, unpack_key
from udo_runtime.sdk.api import Operator
from udo_runtime.state.codec import EXPIRES, EXPIRY, pack, unpack
from udo_runtime.state.session import Session

Rows = list[dict[str, Any]]


class Key(NamedTuple):
    """A touched key: its value, its group, its state, which is changed in place."""

    key: Any
    group: int
    state: dict[str, Any]


class ChildOperator(Operator):
    """The operator in its process; `process`, `on_timer` and `migrate` are one call each, for one event, timer or state."""

    def __init__(self, child: Child, schema: pa.Schema, output: pa.Schema) -> None:
        self._child, self._input, self._output = child, schema, output

    def events(self, ctx: KeyedContext, batch: pa.RecordBatch, index: list[int], touched: Sequence[Key]) -> pa.RecordBatch:
        """The answer to events, each of the key that `index` says; states and timers of these are changed."""
        request = pb.Message(data=pb.Data(watermark_us=ctx._watermark_us))
        tables = [(pb.Part.EVENTS, batch), (pb.Part.INDEX, _batch(INDEX, index)), (pb.Part.KEYS, _keys(touched))]
        try:
            reply = self._child.ask(request, tables)
        except Failed as e:
            name(e, batch)
            raise
        return self._take(ctx, reply, touched)

    def timers(self, ctx: KeyedContext, due: list[tuple[int, int]], touched: Sequence[Key]) -> pa.RecordBatch:
        """The answer to timers: (which key, µs since 1970), in this order."""
        assert ctx._watermark_us is not None, "timers fire by a watermark"
        request = pb.Message(timers=pb.Timers(watermark_us=ctx._watermark_us))
        times = _batch(TIMES, [key for key, _ in due], [at for _, at in due])
        try:
            reply = self._child.ask(request, [(pb.Part.DUE, times), (pb.Part.KEYS, _keys(touched))])
        except Failed as e:
            if e.row is not None and e.row < len(due):
                key, at_us = due[e.row]
                e.event = event_text({"key": touched[key].key, "at": _time(at_us)})
            raise
        return self._take(ctx, reply, touched)

    def process(self, event: dict[str, Any], ctx: Any) -> Rows:
        """One event, as one of a frame that failed is tried."""
        batch = pa.RecordBatch.from_pylist([event], self._input)
        return self.events(ctx, batch, [0], [Key(ctx.key, ctx._number, ctx.state)]).to_pylist()  # type: ignore[no-any-return]

    def on_timer(self, key: Any, at: dt.datetime, ctx: Any) -> Rows:
        """One timer."""
        return self.timers(ctx, [(0, _us(at))], [Key(key, ctx._number, ctx.state)]).to_pylist()  # type: ignore[no-any-return]

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        """One key's state."""
        request = pb.Message(migrate=pb.Migrate(from_version=from_version))
        reply = self._child.ask(request, [(pb.Part.KEYS, _keys([Key(None, 0, old)]))])
        try:
            ((_, state, _),) = _states(reply, 1)
        except (ProtocolError, ValueError) as e:
            raise self._child.blame(ProtocolError(f"migrate: expected one state: {e}")) from e
        return state

    def _take(self, ctx: KeyedContext, reply: Received, touched: Sequence[Key]) -> pa.RecordBatch:
        """Put what it says about states and timers in force, once all of it has been looked at; the answer."""
        try:
            if (kind := reply.message.WhichOneof("kind")) != "answer":
                raise ProtocolError(f"expected an Answer, got {kind}")
            answer = reply.table(pb.Part.ROWS, self._output)
            states = _states(reply, len(touched))
            timers = _times(reply, len(touched))
        except ProtocolError as e:
            raise self._child.blame(e) from e
        for number, state, expires in states:
            key = touched[number]
            if expires is not None and key.state.get(EXPIRES) == (at_us := _us(expires)):
                state[EXPIRES] = at_us
            key.state.clear()
            key.state.update(state)
            if expires is not None:
                _at(ctx, key).expire(expires)
        for number, at in timers:
            _at(ctx, touched[number]).timer(at)
        return empty(self._output) if answer is None else answer


class ChildKeyedProcessor(KeyedProcessor):
    """See the module."""

    _operator: ChildOperator
    _batch: pa.RecordBatch  # of the frame that is tried under a policy

    def _plain(self, session: Session, batch: pa.RecordBatch, column: list[int]) -> pa.RecordBatch:
        rows: dict[Any, int] = {}
        try:
            self._check_keys(batch)
            validated(batch)  # also its text, which is not looked at before: no operator is to get such as is none
            values = [batch.column(n).to_pylist() for n in self._keyed.columns]
            keys = values[0] if len(values) == 1 else list(zip(*values, strict=True))
            index = [rows.setdefault(key, len(rows)) for key in keys]
            numbers = dict(zip(keys, column, strict=True))
            session.open(list(rows), [numbers[key] for key in rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise ProcessingError(explained(e)) from e
        states = session.states
        return self._operator.events(self._ctx, batch, index, [Key(key, numbers[key], states[key]) for key in rows])

    def _tolerant(
        self, session: Session, batch: pa.RecordBatch, column: list[int], policy: Policy
    ) -> tuple[pa.RecordBatch, list[BadEvent]]:
        self._batch = batch
        return super()._tolerant(session, batch, column, policy)

    def _each(self, session: Session, column: list[int], asked: Callable[[], tuple[Rows, list[Any]]]) -> Rows:
        return self._plain(session, self._batch, column).to_pylist()  # type: ignore[no-any-return]

    def _timers(self, due: list[tuple[int, str, int, bytes]]) -> Rows:
        """As few calls as may be: an expiration waits for its key's earlier timers, and later timers of that key wait for it."""
        ctx, answers = self._ctx, Rows()
        touched: list[Key] = []
        rows: dict[bytes, int] = {}
        waiting: list[tuple[int, int]] = []
        expiring: dict[bytes, tuple[int, int]] = {}

        def fire() -> None:
            if waiting:
                answers.extend(self._operator.timers(ctx, waiting, touched).to_pylist())
            for packed, (at, n) in expiring.items():
                self._on_timer(n, EXPIRY, at, packed)
            touched.clear()
            rows.clear()
            waiting.clear()
            expiring.clear()

        for at, kind, n, packed in due:
            if packed in expiring:
                fire()
            if kind == EXPIRY and packed in rows:
                expiring[packed] = (at, n)
            elif kind == EXPIRY:
                self._on_timer(n, kind, at, packed)
            else:
                if packed not in rows:
                    key = unpack_key(packed)
                    rows[packed] = len(touched)
                    touched.append(Key(key, n, ctx._groups[n].open(key)))
                waiting.append((rows[packed], at))
        fire()
        return answers


def _batch(schema: pa.Schema, *columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _keys(touched: Sequence[Key]) -> pa.RecordBatch:
    expires = [key.state.get(EXPIRES) for key in touched]
    states = [_packed(key.state) for key in touched]
    return _batch(KEYS, [pack(key.key) for key in touched], states, expires)


def _packed(state: dict[str, Any]) -> bytes | None:
    if EXPIRES in state:
        state = {k: v for k, v in state.items() if k != EXPIRES}
    return pack(state) if state else None


def _states(reply: Received, keys: int) -> list[tuple[int, dict[str, Any], dt.datetime | None]]:
    """(which key, its new state, when it expires). ProtocolError if a table is not what it should be."""
    table = reply.table(pb.Part.STATES, STATES)
    if table is None:
        return []
    numbers, packed, expires = (column.to_pylist() for column in table.columns)
    _require_rows(numbers, keys)
    return [(n, _state(p), None if e is None else _time(e)) for n, p, e in zip(numbers, packed, expires, strict=True)]


def _state(packed: bytes | None) -> dict[str, Any]:
    if packed is None:
        return {}
    try:
        state = unpack(packed)
        pack(state)  # what can be read may be nested too deep to be written
    except (ValueError, TypeError, OverflowError, ArithmeticError, msgpack.UnpackException) as e:
        raise ProtocolError(f"a state that is no MessagePack: {type(e).__name__}: {e}") from e
    if not isinstance(state, dict) or not all(isinstance(k, str) for k in state) or EXPIRES in state:
        raise ProtocolError("a state that is no map from text")
    return state


def _times(reply: Received, keys: int) -> list[tuple[int, dt.datetime]]:
    table = reply.table(pb.Part.SET, TIMES)
    if table is None:
        return []
    numbers, times = (column.to_pylist() for column in table.columns)
    _require_rows(numbers, keys)
    if None in times:
        raise ProtocolError("a timer without a time")
    return [(n, _time(at)) for n, at in zip(numbers, times, strict=True)]


def _require_rows(numbers: list[int | None], keys: int) -> None:
    if any(n is None or not 0 <= n < keys for n in numbers):
        raise ProtocolError(f"a key that is none of the {keys} it was given")


def _time(us: int) -> dt.datetime:
    try:
        return EPOCH + dt.timedelta(microseconds=us)
    except OverflowError as e:
        raise ProtocolError(f"a time of {us} µs since 1970, beyond the year 9999") from e


def _us(at: dt.datetime) -> int:
    return (at - EPOCH) // dt.timedelta(microseconds=1)


def _at(ctx: KeyedContext, key: Key) -> KeyedContext:
    ctx.key, ctx._number, ctx.state = key
    return ctx
