"""Keyed, stateful processing of frames: touches the groups, runs the operator event by event, fires timers at END."""

from __future__ import annotations

import datetime as dt
import heapq
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from udo_protocol.errors import SchemaError
from udo_protocol.formats.inputs import INPUT_COLUMN
from udo_protocol.formats.rows import as_events
from udo_protocol.queue import event_times
from udo_protocol.queue.event_times import ONLY, EventTimes
from udo_protocol.queue.frame import Header
from udo_runtime.execution import keyed_bad_events as bad_events
from udo_runtime.execution.bad_events import BadEvent, bad_row, rows_of
from udo_runtime.execution.distinct_keys import comparable, comparable_value, values_of
from udo_runtime.execution.gathered import FIRST, GatheredAnswers, empty, joined, taking
from udo_runtime.execution.keyed_bad_events import Policy, ResentLetters, Unit
from udo_runtime.execution.timers import EPOCH, Due, KeyedContext, take_due, to_us
from udo_runtime.failure import PassedOn, ProcessingError, event_text, failed, not_answers
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.state.codec import EXPIRES, EXPIRY, TIMERS, unpack_key
from udo_runtime.state.label import label_of
from udo_runtime.state.session import Session, time_group
from udo_runtime.state.snapshot import Timed


@dataclass(frozen=True)
class KeyedConfig:
    """How an operator is keyed, from its manifest."""

    columns: tuple[str, ...]
    time_column: str | None = None
    delay_us: int = 0
    state_bytes: int = 256 << 20
    state_version: int = 0
    migrates_from: tuple[int, ...] = ()
    commit: str = "epoch"
    inputs: tuple[str, ...] = ()  # the inputs of an operator with several

    @classmethod
    def of(cls, keyed: Mapping[str, Any]) -> KeyedConfig:
        """From a manifest's `keyed`, which may have come as JSON."""
        return cls(**{**keyed, "columns": tuple(keyed["columns"]), "inputs": tuple(keyed.get("inputs", ()))})

    @property
    def commit_frame(self) -> bool:
        """Whether every answer waits until it and the state are durable: nothing is processed twice."""
        return self.commit == "frame"


class Processed(NamedTuple):
    """The result of a frame: its answer, its bad events, and the highest event times of the others."""

    answer: pa.RecordBatch
    bad: Sequence[BadEvent]
    highest: EventTimes = {}


class KeyedProcessor:
    """Runs a per-event operator over keyed frames of any session."""

    policy = Policy()
    on_trial = False  # whether answers to events are discarded

    def __init__(self, target: Operator, keyed: KeyedConfig, output: pa.Schema, ctx: Context) -> None:
        self._operator, self._keyed, self._output = target, keyed, output
        self._nothing = empty(output)
        self.commit_frame = keyed.commit_frame
        self._names, self._take = set(output.names), taking(output)
        self._ctx = KeyedContext(ctx.operator, ctx.version, ctx.instance, ctx.directory)
        # The value of one column, or a tuple of several.
        self._key: Callable[[dict[str, Any]], Any] = operator.itemgetter(*keyed.columns)

    @property
    def state_version(self) -> int:
        """The version of the state that the operator reads and writes."""
        return self._keyed.state_version

    def events(self, session: Session, header: Header, batch: pa.RecordBatch, numbers: pa.Array) -> Processed | None:
        """Process a DATA frame whose events are in the key groups `numbers`; None: STALE, nothing has changed."""
        label, partition = label_of(header), header.partition
        if not session.admit(label, start_empty=header.start_empty, since=since_of(header)):
            return None
        touched = set(numbers.unique().to_pylist())
        if self._keyed.time_column is not None:
            touched.add(time_group(partition))
        if not session.touch(touched, label, partition):
            return None
        ctx = self._ctx
        ctx._groups, ctx._watermark_us = session.groups, session.watermark_us(label.epoch, self._keyed.delay_us, self._keyed.inputs)
        bad: list[BadEvent] = []
        if self.policy.plain:
            answer = self._plain(session, batch, numbers)
        else:
            answer, bad = self._tolerant(session, batch, numbers, self.policy)
        return Processed(answer, bad, self._saw(session, batch, bad, partition))

    def _plain(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        """The answer to the events of a frame that fails as a whole."""
        answers = self._each(session, numbers.to_pylist(), lambda: self._events_and_keys(batch))
        return self._nothing if self.on_trial else answers.batch()

    def _saw(self, session: Session, batch: pa.RecordBatch, bad: Sequence[BadEvent], partition: int) -> EventTimes:
        """Note the highest event times of a frame, without its bad events."""
        if self._keyed.time_column is None or batch.num_rows <= len(bad):
            return {}
        if bad:
            rows = {b.row for b in bad}
            batch = batch.take([i for i in range(batch.num_rows) if i not in rows])
        times, inputs = batch.column(self._keyed.time_column), self._keyed.inputs
        of = {name: times.filter(pc.equal(batch.column(INPUT_COLUMN), name)) for name in inputs} if inputs else {ONLY: times}
        highest = {name: to_us(t) for name, some in of.items() if (t := pc.max(some).as_py()) is not None}
        session.saw(highest, partition)
        return highest

    def _events_and_keys(self, batch: pa.RecordBatch) -> tuple[list[dict[str, Any]], list[Any]]:
        events = as_events(batch)
        given = [batch.column(name) for name in self._keyed.columns]
        columns = self._key_columns(batch)
        if all(column is as_given for column, as_given in zip(columns, given, strict=True)):
            return events, list(map(self._key, events))
        values = list(map(values_of, columns))
        return events, values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def _each(self, session: Session, column: list[int], asked: Callable[[], tuple[list[dict[str, Any]], list[Any]]]) -> GatheredAnswers:
        """The answers to the events of a frame; this is the hot path."""
        ctx, process, states = self._ctx, self._operator.process, session.states
        take, width = self._take, len(self._names)
        out, room = GatheredAnswers(self._output), FIRST
        event: dict[str, Any] = {}
        answer: Any = None
        answers: Any = ()
        try:
            events, keys = asked()
            for event, key, number in zip(events, keys, column, strict=True):
                try:
                    state = states[key]
                except KeyError:
                    session.open(keys, column)  # all keys of the frame: much cheaper than one by one
                    state = states[key]
                ctx.key, ctx._number, ctx.state = key, number, state
                for answer in (answers := process(event, ctx)) or ():
                    if type(answer) is not dict:
                        answer = dict(answer.items())  # without the defaults that a Counter has
                    if len(answer) != width:
                        raise self._wrong(answer, event)
                    try:
                        out.append(take(answer))
                    except KeyError:
                        raise self._wrong(answer, event) from None
                    if len(out) >= room:
                        if self.on_trial:
                            out.clear()
                        else:
                            room = out.pack()
                if ctx.state is not state:
                    ctx._own = state
                    ctx._keep()
        except (ProcessingError, PassedOn):
            raise
        except BaseException as e:
            raise not_answers(answers, self._output.names, event, answer) or failed(e, event) from e
        return out

    def _tolerant(
        self, session: Session, batch: pa.RecordBatch, numbers: pa.Array, policy: Policy
    ) -> tuple[pa.RecordBatch, list[BadEvent]]:
        """The answer to the events of a frame by the policy, and the bad events, whose changes are undone."""
        column = numbers.to_pylist()
        wrong: dict[int, ProcessingError] = {}  # rows without a key that could have a state
        events: Sequence[dict[str, Any] | ProcessingError]
        try:
            events, keys = self._events_and_keys(batch)
        except (ProcessingError, ValueError, OverflowError, pa.ArrowInvalid):
            events, keys, wrong = self._without_key(batch)
        usable = [row for row in range(len(keys)) if row not in wrong] if wrong else range(len(keys))
        try:
            session.open([keys[row] for row in usable], [column[row] for row in usable])
        except (TypeError, ValueError, OverflowError) as e:
            raise ProcessingError(str(e)) from e
        states, ctx = session.states, self._ctx

        def unit(row: int) -> Unit:
            event, key, number = events[row], keys[row], column[row]

            def run_it() -> GatheredAnswers:
                if isinstance(event, ProcessingError) or row in wrong:
                    raise wrong[row]
                ctx._at(key, number, states[key])
                return self._answers(lambda: self._operator.process(event, ctx), event)

            return Unit({} if row in wrong else states[key], run_it, lambda e: bad_row(batch, row, e, number))

        def whole() -> pa.RecordBatch:
            for error in wrong.values():
                raise error
            return self._each(session, column, lambda: (events, keys)).batch()  # type: ignore[arg-type, return-value]

        touched = [states[key] for key in {keys[row] for row in usable}]
        with self._journaled() as journal:
            frame = bad_events.UserCalls(session.groups, journal, touched, whole, lambda: map(unit, range(len(events))))
            return bad_events.run(frame, policy, self._output)

    def _without_key(self, batch: pa.RecordBatch) -> tuple[list[dict[str, Any] | ProcessingError], list[Any], dict[int, ProcessingError]]:
        """Events, keys, and the rows without a key, with the error: Python cannot hold the event."""
        events = rows_of(batch)
        keys = [None if isinstance(event, ProcessingError) else comparable_value(self._key(event)) for event in events]
        return events, keys, {row: event for row, event in enumerate(events) if isinstance(event, ProcessingError)}

    @contextmanager
    def _journaled(self) -> Iterator[list[Timed]]:
        """A context in which timers that are set are noted."""
        journal: list[Timed] = []
        self._ctx._journal = journal
        try:
            yield journal
        finally:
            self._ctx._journal = None

    def _answers(self, call: Callable[[], Any], event: dict[str, Any], what: str = "") -> GatheredAnswers:
        """User code's answers to one event, checked; ProcessingError with the event, and `what` in front of the message."""
        given: Any = ()
        answers, room = GatheredAnswers(self._output), FIRST
        try:
            given = call() or ()
            for answer in given:
                if not isinstance(answer, dict) or answer.keys() != self._names:
                    told = given if isinstance(given, (dict, str, bytes)) else [answer]
                    raise not_answers(told, self._output.names, event) or self._wrong(answer, event)
                answers.append(self._take(answer))
                if len(answers) >= room:
                    room = answers.pack()
            self._ctx._keep()
        except (ProcessingError, PassedOn):
            raise
        except BaseException as e:
            raise not_answers(given, self._output.names, event) or failed(e, event, what) from e
        return answers

    def end(self, session: Session, header: Header, again: ResentLetters | None = None) -> Processed | None:
        """Process an END frame: due timers of the lane's groups fire; `complete` follows. None: STALE.

        The frame contains the highest event times of its partition, whose events may have gone to other slots. `again`: dead letters that
        take part in this epoch, before its timers; those that fail are noted in `again.failed`.
        """
        label, partition = label_of(header), header.partition
        if not session.admit(label, start_empty=header.start_empty, since=since_of(header)):
            return None
        if not session.touch(self._numbers(header), label, partition):
            return None
        answer, bad = self._nothing, list[BadEvent]()
        if not header.void:
            if self._keyed.time_column is not None:
                session.saw(event_times.told(header), partition)
            watermark = session.watermark_us(label.epoch, self._keyed.delay_us, self._keyed.inputs)
            self._ctx._groups, self._ctx._watermark_us = session.groups, watermark
            replayed = self._sent_again(session, again, partition) if again else answer
            if watermark is not None:
                answer, bad = self._fire(session, header.groups, watermark)
            if replayed.num_rows:
                answer = joined([replayed, answer], self._output)
        return Processed(answer, bad)

    def complete(self, session: Session, header: Header) -> None:
        """Complete the groups of an END that `end` has answered. ProcessingError if their state cannot be stored."""
        numbers = self._numbers(header)
        try:
            session.close(numbers)
        except TypeError as e:
            raise ProcessingError(str(e)) from e
        session.end(numbers, label_of(header), void=header.void)
        self._check_size(session)

    def _numbers(self, header: Header) -> list[int]:
        """The groups of an END, including the one that holds the partition's highest event times."""
        timed = self._keyed.time_column is not None
        return [*header.groups, time_group(header.partition)] if timed else list(header.groups)

    def _sent_again(self, session: Session, again: ResentLetters, partition: int) -> pa.RecordBatch:
        policy = replace(self.policy, dead_letter=True)
        answer, bad = self._tolerant(session, again.events, pa.array(again.groups, pa.int32()), policy)
        self._saw(session, again.events, bad, partition)
        again.failed = {b.row: b for b in bad}
        return answer

    def _fire(self, session: Session, numbers: Iterable[int], watermark_us: int) -> tuple[pa.RecordBatch, list[BadEvent]]:
        due: list[Due] = []
        for n in numbers:
            group = session.groups[n]
            if TIMERS not in group.live and TIMERS not in group.values:
                continue
            due += take_due(group.open(TIMERS), n, watermark_us)
        return self._fired(sorted(due)) if due else (self._nothing, [])

    def _fired(self, due: list[Due]) -> tuple[pa.RecordBatch, list[BadEvent]]:
        """The answer to these timers by the policy, and the bad timers, whose changes are undone."""
        ctx = self._ctx

        def whole() -> pa.RecordBatch:
            return self._timers(due)

        if self.policy.plain:
            return whole(), []

        def unit(row: int) -> Unit:
            at, kind, n, packed = due[row]
            state = ctx._groups[n].open(unpack_key(packed))
            return Unit(state, lambda: self._on_timer(n, kind, at, packed), lambda e: bad_timer(row, due[row], e))

        touched = {packed: ctx._groups[n].open(unpack_key(packed)) for _, _, n, packed in due}
        with self._journaled() as journal:
            frame = bad_events.UserCalls(ctx._groups, journal, list(touched.values()), whole, lambda: map(unit, range(len(due))))
            return bad_events.run(frame, self.policy, self._output)

    def _timers(self, due: list[Due]) -> pa.RecordBatch:
        """The operator's answer to these timers, in order; expirations take effect among them."""
        answers = GatheredAnswers(self._output)
        for at, kind, n, packed in due:
            answers.follow(self._on_timer(n, kind, at, packed))
        return answers.batch()

    def _on_timer(self, number: int, kind: str, at_us: int, packed: bytes) -> GatheredAnswers:
        ctx = self._ctx
        key = unpack_key(packed)
        ctx._at(key, number, ctx._groups[number].open(key))
        if kind == EXPIRY:
            if ctx.state.get(EXPIRES) == at_us:  # else a later call replaced it
                ctx.state.clear()
            return GatheredAnswers(self._output)
        when = EPOCH + dt.timedelta(microseconds=at_us)
        return self._answers(lambda: self._operator.on_timer(ctx.key, when, ctx), {"key": ctx.key, "at": when}, "on_timer: ")

    def _wrong(self, answer: Any, event: dict[str, Any]) -> ProcessingError:
        got = ", ".join(sorted(answer)) if isinstance(answer, dict) else type(answer).__name__
        message = f"expected an event with the columns {', '.join(self._output.names)}; the operator answered {got}"
        return ProcessingError(message, "", event_text(event), SchemaError.code)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns in comparable form."""
        return [comparable(batch.column(name)) for name in self._keyed.columns]

    def _check_size(self, session: Session) -> None:
        if session.size > self._keyed.state_bytes:
            sizes = [(len(v), repr(k)) for g in session.groups.values() for k, v in g.values.items() if k is not TIMERS]
            largest = ", ".join(f"{k} ({n} bytes)" for n, k in heapq.nlargest(3, sizes))
            ctx = self._ctx
            raise ProcessingError(
                f"state of {ctx.operator}@{ctx.version}, session {session.name}, takes {session.size} bytes; the bound is "
                f"{self._keyed.state_bytes} (limits.state_mb). Largest keys: {largest}"
            )


def bad_timer(row: int, due: Due, error: ProcessingError) -> BadEvent:
    """The timer in that row as a bad event."""
    at_us, _, number, packed = due
    event = {"key": unpack_key(packed), "at": EPOCH + dt.timedelta(microseconds=at_us)}
    return BadEvent(row, error, json.dumps(event, default=str, ensure_ascii=False), group=number, timer=True)


def since_of(header: Header) -> int | None:
    """The last epoch before the frame's in which anything happened; None: the previous one."""
    return header.since if header.HasField("since") else None
