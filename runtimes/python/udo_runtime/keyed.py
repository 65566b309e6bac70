"""Keyed, stateful processing of frames: touches the groups, runs the operator event by event, fires timers at END."""

from __future__ import annotations

import datetime as dt
import heapq
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import SchemaError
from udo_protocol.frame import Header
from udo_runtime.api import Context, Operator
from udo_runtime.failure import ProcessingError, event_text, own_traceback, rows_to_batch
from udo_runtime.groups import EXPIRES, TIMERS, Group, Label, pack, unpack
from udo_runtime.session import Session, time_group

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A group's timers and expirations by packed key, in µs since the epoch: several timers, one expiration. At one time timers
# fire first.
TIMER, EXPIRY = "t", "x"


@dataclass(frozen=True)
class Keyed:
    """How an operator is keyed: from its manifest."""

    columns: tuple[str, ...]
    time_column: str | None = None
    delay_us: int = 0
    state_bytes: int = 256 << 20
    state_version: int = 0
    migrates_from: tuple[int, ...] = ()
    commit: str = "epoch"

    @property
    def commit_frame(self) -> bool:
        """Whether every answer waits until it and the state are durable: nothing is processed twice."""
        return self.commit == "frame"


def to_us(when: dt.datetime) -> int:
    """µs since the epoch; a time without zone counts as UTC."""
    when = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
    return (when - _EPOCH) // dt.timedelta(microseconds=1)


class KeyedContext(Context):
    """The context of a keyed operator: the state of the event's key, timers, the watermark."""

    key: Any = None
    state: dict[str, Any]
    _groups: dict[int, Group]
    _number: int  # of the key's group
    _watermark_us: int | None = None
    # Changed for every event: without the check of a frozen dataclass, which is Python code.
    __setattr__ = object.__setattr__

    @property
    def watermark(self) -> dt.datetime | None:
        """Highest event time of the epochs before this one, minus the declared delay; None before the first."""
        return None if self._watermark_us is None else _EPOCH + dt.timedelta(microseconds=self._watermark_us)

    def timer(self, at: dt.datetime) -> None:
        """Call `on_timer` for this key at the end of the first epoch whose watermark has reached `at`; the same time once."""
        at_us = to_us(at)
        due = self._timers(TIMER).setdefault(pack(self.key), [])
        if at_us not in due:
            due.append(at_us)

    def expire(self, at: dt.datetime) -> None:
        """Drop this key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces it."""
        at_us = to_us(at)
        if self.state.get(EXPIRES) != at_us:
            self.state[EXPIRES] = at_us
            self._timers(EXPIRY)[pack(self.key)] = at_us

    def _timers(self, kind: str) -> dict[bytes, Any]:
        of_kind: dict[bytes, Any] = self._groups[self._number].open(TIMERS).setdefault(kind, {})
        return of_kind


class KeyedProcessor:
    """Runs a per-event operator over keyed frames of any session."""

    def __init__(self, target: Operator, keyed: Keyed, output: pa.Schema, ctx: Context) -> None:
        self._operator, self._keyed, self._output = target, keyed, output
        self.commit_frame = keyed.commit_frame
        self._names = set(output.names)
        self._ctx = KeyedContext(ctx.operator, ctx.version, ctx.instance, ctx.directory)
        # The value of one column, or a tuple of several.
        self._key: Callable[[dict[str, Any]], Any] = operator.itemgetter(*keyed.columns)

    @property
    def state_version(self) -> int:
        """Of the state that the operator reads and writes."""
        return self._keyed.state_version

    def events(self, session: Session, header: Header, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch | None:
        """Answer a DATA frame whose events lie in the key groups `numbers`; None: STALE, nothing has changed."""
        label, partition = label_of(header), header.partition
        if not session.admit(label, start_empty=header.start_empty):
            return None
        column = numbers.to_pylist()
        touched = set(column)
        if self._keyed.time_column is not None:
            touched.add(time_group(partition))
        if not session.touch(touched, label, partition):
            return None
        ctx, process, names, states = self._ctx, self._operator.process, self._names, session.states
        ctx._groups, ctx._watermark_us = session.groups, session.watermark_us(label.epoch, self._keyed.delay_us)
        out: list[dict[str, Any]] = []
        event: dict[str, Any] = {}
        try:
            events = batch.to_pylist()
            self._check_keys(batch)
            keys = list(map(self._key, events))
            for event, key, number in zip(events, keys, column, strict=True):
                try:
                    ctx.state = states[key]
                except KeyError:
                    session.open(keys, column)  # those of all the frame: much cheaper than one by one
                    ctx.state = states[key]
                ctx.key, ctx._number = key, number
                for answer in process(event, ctx) or ():
                    if answer.keys() != names:
                        raise self._wrong(answer, event)
                    out.append(answer)
        except ProcessingError:
            raise
        except Exception as e:
            raise ProcessingError(f"{type(e).__name__}: {e}", own_traceback(e), event_text(event)) from e
        if self._keyed.time_column is not None and batch.num_rows:
            highest = pc.max(batch.column(self._keyed.time_column)).as_py()
            if highest is not None:
                session.saw(to_us(highest), partition)
        return rows_to_batch(out, self._output)

    def end(self, session: Session, header: Header) -> pa.RecordBatch | None:
        """Answer an END frame: due timers of the lane's groups fire, then the groups are complete. None: STALE."""
        label, partition = label_of(header), header.partition
        if not session.admit(label, start_empty=header.start_empty):
            return None
        numbers = list(header.groups)
        if self._keyed.time_column is not None:
            numbers.append(time_group(partition))
        if not session.touch(numbers, label, partition):
            return None
        out: list[dict[str, Any]] = []
        if not header.void:
            watermark = session.watermark_us(label.epoch, self._keyed.delay_us)
            if watermark is not None:
                out = self._fire(session, header.groups, watermark)
        try:
            session.close(numbers)
        except TypeError as e:
            raise ProcessingError(str(e)) from e
        session.end(numbers, label, void=header.void)
        self._check_size(session)
        return rows_to_batch(out, self._output)

    def _fire(self, session: Session, numbers: Iterable[int], watermark_us: int) -> list[dict[str, Any]]:
        due: list[tuple[int, str, int, bytes]] = []
        for n in numbers:
            group = session.groups[n]
            if TIMERS not in group.live and TIMERS not in group.values:
                continue
            due += _due(group.open(TIMERS), n, watermark_us)
        out: list[dict[str, Any]] = []
        self._ctx._groups, self._ctx._watermark_us = session.groups, watermark_us
        for at, kind, n, packed in sorted(due):
            out += self._on_timer(n, kind, at, packed)
        return out

    def _on_timer(self, number: int, kind: str, at_us: int, packed: bytes) -> Sequence[dict[str, Any]]:
        ctx = self._ctx
        ctx.key, ctx._number = unpack_key(packed), number
        ctx.state = ctx._groups[number].open(ctx.key)
        if kind == EXPIRY:
            if ctx.state.get(EXPIRES) == at_us:  # else a later call replaced it
                ctx.state.clear()
            return ()
        when = _EPOCH + dt.timedelta(microseconds=at_us)
        try:
            answers = list(self._operator.on_timer(ctx.key, when, ctx) or ())
        except Exception as e:
            raise ProcessingError(f"on_timer: {type(e).__name__}: {e}", own_traceback(e), event_text({"key": ctx.key, "at": when})) from e
        for answer in answers:
            if answer.keys() != self._names:
                raise self._wrong(answer, {"key": ctx.key, "at": when})
        return answers

    def _wrong(self, answer: Any, event: dict[str, Any]) -> ProcessingError:
        got = ", ".join(sorted(answer)) if isinstance(answer, dict) else type(answer).__name__
        message = f"expected an event with the columns {', '.join(self._output.names)}; the operator answered {got}"
        return ProcessingError(message, "", event_text(event), SchemaError.code)

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        for name in self._keyed.columns:
            column = batch.column(name)
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                raise ProcessingError(
                    f"key column {name!r} is NaN, which equals nothing, not even itself: leave such events out, or cast it"
                )

    def _check_size(self, session: Session) -> None:
        if session.size > self._keyed.state_bytes:
            sizes = [(len(v), repr(k)) for g in session.groups.values() for k, v in g.values.items() if k is not TIMERS]
            largest = ", ".join(f"{k} ({n} bytes)" for n, k in heapq.nlargest(3, sizes))
            ctx = self._ctx
            raise ProcessingError(
                f"state of {ctx.operator}@{ctx.version}, session {session.name}, takes {session.size} bytes; the bound is "
                f"{self._keyed.state_bytes} (limits.state_mb). Largest keys: {largest}"
            )


def _due(timers: dict[str, Any], number: int, watermark_us: int) -> list[tuple[int, str, int, bytes]]:
    """Take the timers and expirations of a group that are due: (when, kind, group, packed key)."""
    due: list[tuple[int, str, int, bytes]] = []
    for key, at in list(timers.get(EXPIRY, {}).items()):
        if at <= watermark_us:
            due.append((at, EXPIRY, number, key))
            del timers[EXPIRY][key]
    for key, times in list(timers.get(TIMER, {}).items()):
        passed = [at for at in times if at <= watermark_us]
        if passed:
            due += [(at, TIMER, number, key) for at in passed]
            rest = timers[TIMER][key] = [at for at in times if at > watermark_us]
            if not rest:
                del timers[TIMER][key]
    for kind in (TIMER, EXPIRY):
        if kind in timers and not timers[kind]:
            del timers[kind]
    return due


def label_of(header: Header) -> Label:
    """The attempt a frame belongs to."""
    return Label(header.label.run, header.label.epoch, header.label.attempt)


def unpack_key(packed: bytes) -> Any:
    """The key as events carry it: several columns make a tuple."""
    key = unpack(packed)
    return tuple(key) if isinstance(key, list) else key
